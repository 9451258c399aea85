"""The settings: one frozen `Config`, read once from `gligabao.toml`, the environment and the flags of `serve`.

Owns the keys, their defaults and bounds, where each value came from, and the one-line errors about them. The SDK and
its HTTP library read some variables of their own (docs/operating.md). Whether a value works (a database that answers,
an address that can be read) is for the room that uses it to find out at the start.
"""

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    ValidationError,
    model_validator,
)

from gligabao.errors import ConfigError
from gligabao.logs import LogFormat
from gligabao.validation import Fault, FaultText, find_faults

DEFAULT_FILE = Path("gligabao.toml")
"""The file that is read when none is named: the one in the working directory, if there is one."""

SECRET_KEYS = frozenset({"anthropic_api_key", "search_api_key"})
URL_KEYS = frozenset({"database_url", "anthropic_base_url", "search_url"})

_NO_FLAGS: Mapping[str, object] = MappingProxyType({})


# Shapes of values


def _check_key(value: str | None) -> str | None:
    """Return an API key without the spaces around it; refuse what cannot stand in a header."""
    key = (value or "").strip()
    if re.search(r"[^!-~]", key):
        raise ValueError("must be plain ASCII without spaces or line breaks")
    return key or None


def _check_http_url(value: str) -> str:
    url = _split(value)
    if url is None or url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError("must be a URL that starts with http:// or https:// and names a host")
    return value


def _check_base_url(value: str) -> str:
    if re.search(r"[?#]", value):
        raise ValueError("must not contain ? or #: the path of each call is added at its end")
    return value


def _check_database_url(value: str) -> str:
    if re.fullmatch(r"sqlite:///[^\x00-\x1f]+", value):
        return value
    server = re.fullmatch(r"postgres(?:ql)?://([^\s\x00-\x1f/?]*)[^\s\x00-\x1f]*", value)
    if not server:
        raise ValueError("must be sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")
    if server[1].count("@") > 1:
        raise ValueError("has an @ in its user or password: write it as %40")
    # Several hosts may be named, and none.
    if not all(re.fullmatch(_HOST_AND_PORT, host) for host in server[1].rpartition("@")[2].split(",")):
        raise ValueError("must name its host as HOST, HOST:PORT or [IPV6]:PORT")
    return value


_HOST_AND_PORT = r"(\[[^\[\]]+\]|[^\[\]:]*)(:[0-9]*)?"


def _split(url: str) -> SplitResult | None:
    if re.search(r"[\s\x00-\x1f]", url):
        return None
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  (reading it is what checks it)
    except ValueError:
        return None
    return parts


def _check_host(value: str) -> str:
    host = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    if _address(host) is None and not re.fullmatch(r"[A-Za-z0-9_.-]+", host):
        raise ValueError("must be a host name or an address, without a port")
    return host


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


Text = Annotated[str, StringConstraints(min_length=1)]
Key = Annotated[str | None, AfterValidator(_check_key)]
HttpUrl = Annotated[Text, AfterValidator(_check_http_url)]
HostName = Annotated[
    str, StringConstraints(pattern=r"^[^\s/]+$"), FaultText("must be a host name, without spaces or slashes")
]
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ModelPrice(BaseModel):
    """What a model costs, in US$ per million tokens."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)

    input: Price
    output: Price
    cache_read: Price
    cache_write: Price


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of `gligabao config`."""

    key: str
    shown_value: Any
    """The value as JSON would have it, without secrets: a key that is set shows as `(set)`."""
    source: str
    """`default`, the file, the variable or the flag that it came from."""


# The settings


class Config(BaseModel):
    """The settings in force. Build one by hand with the few that matter, or `load` it.

    Its `repr` hides the keys and the passwords in URLs; `model_dump` does not.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", hide_input_in_errors=True)

    host: Annotated[str, AfterValidator(_check_host)] = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65535)
    """0 takes any free port."""
    threads: int = Field(256, ge=16)
    """Request threads."""
    database_url: Annotated[str, AfterValidator(_check_database_url)] = "sqlite:///gligabao.db"
    data_dir: Path = Field(Path("."), strict=False)
    """Where `node.lock` lies on Postgres."""
    anthropic_api_key: Key = None
    anthropic_base_url: Annotated[HttpUrl, AfterValidator(_check_base_url)] | None = None
    model: Text = "claude-sonnet-5-5"
    """The model of agents that name none."""
    memory_model: Text = Field(default_factory=lambda known: _default_memory_model(known))
    """The model of remember and query."""
    max_answer_tokens: int = Field(16_000, ge=1)
    """Output limit of one model call of the loop."""
    model_timeout_seconds: float = Field(300, gt=0, allow_inf_nan=False)
    """Of one attempt."""
    prompt_cache: Literal["auto", "on", "off"] = "auto"
    max_working_per_user: int = Field(3, ge=1)
    max_working: int = Field(200, ge=1)
    auth: Literal["off", "keys"] = "off"
    insecure: bool = False
    """Allows `auth = off` on an address that is not loopback."""
    allowed_hosts: list[HostName] = []
    search_provider: Literal["anthropic", "searxng", "brave", "tavily"] = "anthropic"
    search_url: HttpUrl | None = None
    search_api_key: Key = None
    fetch_allow: list[Text] = []
    """Private hosts, addresses and networks that `fetch_url` may read; the reader parses them."""
    prices: dict[Text, ModelPrice] = {}
    log_format: LogFormat = "text"

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(
        cls, path: Path | None = None, *, environ: Mapping[str, str], flags: Mapping[str, object] = _NO_FLAGS
    ) -> Self:
        """Return the settings in force: the flags win over the environment, and that over the file.

        `path` is the file named by `--config`, `GLIGABAO_CONFIG` in the environment else. A blank value and
        a flag of None count as absent. Raises `ConfigError` with one line about whatever is wrong.
        """
        layers = [*_read_file(path or _named_file(environ)), *_read_environment(environ), *_read_flags(flags)]
        found = {key: (value, source) for key, value, source in layers if not _is_blank(value)}
        sources = {key: source for key, (_, source) in found.items()}
        try:
            config = cls.model_validate({key: value for key, (value, _) in found.items()})
        except ValidationError as error:
            raise ConfigError(_tell_faults(error, sources)) from None
        config._sources.update(sources)
        return config

    def describe(self) -> list[Setting]:
        """Return every setting with its value, secrets hidden, and where it came from."""
        return [Setting(key, self._shown(key), self._source_of(key)) for key in type(self).model_fields]

    def secrets(self) -> Iterator[str]:
        """Yield what no log may show: the keys, and the passwords in URLs as written and as meant."""
        for key in sorted(SECRET_KEYS):
            if value := getattr(self, key):
                yield value
        for key in sorted(URL_KEYS):
            for password in sorted(_passwords_in(getattr(self, key) or "")):
                yield password
                yield unquote(password)

    @model_validator(mode="after")
    def _refuse_open_door(self) -> Self:
        if self.auth == "off" and not self.insecure and not _is_loopback(self.host):
            raise ValueError(
                f"{self.host} can be reached from other machines, and auth = off lets everyone in who can reach it:"
                ' set auth = "keys", or allow it with insecure = true (--insecure)'
            )
        return self

    def _shown(self, key: str) -> Any:
        value = getattr(self, key)
        if key in SECRET_KEYS:
            return "(set)" if value else None
        if key in URL_KEYS and value:
            return _hide_password(value)
        return self.model_dump(mode="json", include={key})[key]

    def _source_of(self, key: str) -> str:
        return self._sources.get(key, "argument") if key in self.model_fields_set else "default"

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for key in type(self).model_fields:
            yield key, self._shown(key)


def _default_memory_model(known: dict[str, Any]) -> str:
    """Your own server may have only one model; Anthropic has a cheaper one for this."""
    own_server = known.get("anthropic_base_url") is not None
    return str(known.get("model", "")) if own_server else "claude-haiku-5-5"


# Where values come from

Layer = Iterator[tuple[str, object, str]]
"""Key, value and source."""


def _named_file(environ: Mapping[str, str]) -> Path | None:
    name = environ.get("GLIGABAO_CONFIG", "")
    return Path(name) if name.strip() else None


def _read_file(path: Path | None) -> Layer:
    if path is None and not DEFAULT_FILE.exists():
        return
    path = path or DEFAULT_FILE
    for key, value in _parse_file(path).items():
        yield key, value, str(path)


def _parse_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        fault = "there is no such file"
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        fault = "cannot be read: it is not UTF-8"
    except tomllib.TOMLDecodeError as error:
        fault = f"cannot be read as TOML: {_one_line(str(error))}"
    raise ConfigError(f"configuration file {_one_line(str(path))}: {fault}")


def _read_environment(environ: Mapping[str, str]) -> Layer:
    for key in Config.model_fields:
        names = [f"GLIGABAO_{key.upper()}"]
        if key in ("anthropic_api_key", "anthropic_base_url"):
            names.append(key.upper())
        name = next((name for name in names if environ.get(name, "").strip()), None)
        if name:
            yield key, _parse_variable(key, name, environ[name]), name


def _parse_variable(key: str, name: str, text: str) -> object:
    """Return the text of a variable as the type of its key; one that does not fit is refused with the rest later."""
    match Config.model_fields[key].annotation:
        case kind if kind is int:
            return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", text) else text
        case kind if kind is float:
            return float(text) if re.fullmatch(r"\s*[+-]?[0-9]+(\.[0-9]+)?\s*", text) else text
        case kind if kind is bool:
            return _BOOLEANS.get(text.strip().lower(), text)
        case _ if key in ("allowed_hosts", "fetch_allow", "prices"):
            return _parse_json(key, name, text)
        case _:
            return text


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _parse_json(key: str, name: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "it cannot be read"
        raise ConfigError(f"{key} ({name}): must be JSON, like '[\"10.0.0.0/8\"]' for a list: {reason}") from None


def _read_flags(flags: Mapping[str, object]) -> Layer:
    for key, value in flags.items():
        if value is not None:
            yield key, value, f"--{key.replace('_', '-')}"


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


# Errors


def _tell_faults(error: ValidationError, sources: Mapping[str, str]) -> str:
    """Return all faults in one line."""
    return "; ".join(_tell_fault(fault, sources) for fault in find_faults(error, own_words=_WORDS))


def _tell_fault(fault: Fault, sources: Mapping[str, str]) -> str:
    # The one check of several settings together, which has no field of its own, is about the host.
    key = str(fault.path[0]) if fault.path else "host"
    words = _say_unknown(fault.path) if fault.kind == "extra_forbidden" else fault.words
    return _one_line(f"{fault.field or key} ({sources.get(key, 'default')}): {words}")


def _say_unknown(path: tuple[int | str, ...]) -> str:
    known = list(ModelPrice.model_fields if len(path) > 1 else Config.model_fields)
    near = difflib.get_close_matches(str(path[-1]), known, n=1)
    return "unknown key" + (f", did you mean {near[0]}?" if near else "")


_WORDS = {
    "dict_type": "must be a table",
    "model_type": "must be a table with input, output, cache_read and cache_write",
}
"""TOML's words, where it has other ones than JSON."""


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


# Passwords in URLs


_PASSWORDS = (
    re.compile(r"(?i)([?&]\w*password=)([^&]+)"),
    # Up to the last @: a password typed in by hand may hold characters that should have been written as %XX.
    re.compile(r"((?:postgresql|postgres)://[^:/@]*:)(.+)(?=@)"),
    re.compile(r"(?<=://)([^:/@]*:)([^/?#]+)(?=@)"),
)


def _passwords_in(url: str) -> set[str]:
    return {found[2] for pattern in _PASSWORDS for found in pattern.finditer(url)}


def _hide_password(url: str) -> str:
    for pattern in _PASSWORDS:
        url = pattern.sub(r"\1***", url)
    # Some gateways take their key as a parameter.
    return re.sub(r"(?<=[?&])([^=&#]+)=[^&#]*", r"\1=***", url)
