"""What goes out: responses whose text can always be encoded."""

from flask import Response


class Utf8Response(Response):
    """A response, of JSON or a page. Half a surrogate pair in its text, which UTF-8 has no bytes for, becomes "?"."""

    def set_data(self, value: bytes | str) -> None:
        """Set the whole body."""
        super().set_data(value.encode("utf-8", "replace") if isinstance(value, str) else value)
