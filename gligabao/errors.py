"""The errors gligabao raises on purpose.

    GligabaoError
    ├── ConfigError           the settings cannot be used; the start stops
    ├── StartError            the server cannot start here and now, though its settings are right
    ├── BadInput              400: what the caller sent is wrong
    ├── Forbidden             403
    ├── NotFound              404: not there, or not the caller's
    ├── Conflict              409: a limit or a state stands against it
    ├── UnsupportedMedia      415
    ├── TooMany               429: too many answers that take long
    ├── Unavailable           503: no model key, full, no more threads
    │   ├── Stopping          503: the server is stopping
    │   └── StoreError        503: the database cannot be used now
    │       └── StoreFault    500: the database will never do this, so trying again is useless
    ├── RunLost               a write was refused: the run has ended, or another node owns it
    ├── Cancelled             the agent was told to stop
    ├── ModelError            a model call failed for good
    │   ├── PromptTooLong     the conversation does not fit the model's context window
    │   └── ModelRefused      the model declined to answer
    └── ToolError             a tool could not do its work; the model is told and decides

Some rooms have further ones of their own. `status` is the HTTP status that the web doors answer with. The message says
what was wrong with what and never holds a secret. Callers and models read it as it is, unless the class has another
`client_text`.
"""

from gligabao.records import Stop


class GligabaoError(Exception):
    """Base of every error gligabao raises on purpose."""

    status = 500
    retry_after_seconds: int | None = None
    """When to ask again, for the header `Retry-After`; None: asking again will not help, or nobody knows when."""

    @property
    def client_text(self) -> str:
        """What callers and models are told."""
        return str(self)


class ConfigError(GligabaoError):
    """A setting is unknown, of the wrong type or unreadable. The message is one line naming key and file."""


class StartError(GligabaoError):
    """The server cannot start: the database is in use or of a newer version. The message is one line."""


class BadInput(GligabaoError):
    """What the caller sent is wrong; the message names every fault."""

    status = 400


class Forbidden(GligabaoError):
    """The caller may not do this."""

    status = 403


class NotFound(GligabaoError):
    """There is no such thing, or it belongs to someone else: the two are never told apart."""

    status = 404


class Conflict(GligabaoError):
    """A limit or the state of the thing stands against the request."""

    status = 409


class UnsupportedMedia(GligabaoError):
    """The body is labelled with a media type that is not read here."""

    status = 415


class TooMany(GligabaoError):
    """The server, or the user, has as many streams or waits open as there may be."""

    status = 429
    retry_after_seconds = 10


class Unavailable(GligabaoError):
    """The server cannot do this now."""

    status = 503

    def __init__(self, message: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Stopping(Unavailable):
    """The server is stopping and starts nothing more."""

    def __init__(self) -> None:
        super().__init__("the server is stopping", retry_after_seconds=10)


class StoreError(Unavailable):
    """The database cannot be used now. This may pass, so a write is worth trying again, unless it is a `StoreFault`.

    The message may quote the driver, so it is for the log and for whoever starts the server.
    """

    client_text = "the database failed"

    def __init__(self, message: str) -> None:
        super().__init__(message, retry_after_seconds=5)


class StoreFault(StoreError):
    """The database will never do this: a constraint is against it, or the query or a value is wrong."""

    status = 500

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.retry_after_seconds = None


class RunLost(GligabaoError):
    """A write of an agent was refused by the fence: its run has ended, or another node owns it."""


class Cancelled(GligabaoError):
    """The agent was told to stop; the message is the error of its run."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.text)
        self.stop = stop


class ModelError(GligabaoError):
    """A model call failed for good, after the retries that were worth making."""

    is_refusal_of_request = False
    """The server would not have this request as it was (400 or 422)."""


class PromptTooLong(ModelError):
    """The conversation does not fit the model's context window. Sending it again unchanged is useless."""

    def __init__(self, message: str, *, excess: float | None = None) -> None:
        super().__init__(message)
        self.excess = excess
        """Size of the prompt over the size allowed (1.4: 40 % too much), None when the server did not say."""


class ModelRefused(ModelError):
    """The model declined to answer; the message gives the category it named."""


class ToolError(GligabaoError):
    """A tool could not do its work; the model is told the message and decides what to do."""
