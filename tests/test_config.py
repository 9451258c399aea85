"""The settings: where they come from, what is refused, and that no secret gets out."""

import json
from pathlib import Path

import psycopg
import pytest
from pydantic import ValidationError

from gligabao.config import Config, ModelPrice
from gligabao.errors import ConfigError

DEFAULTS = {
    "host": "127.0.0.1",
    "port": 8080,
    "threads": 256,
    "database_url": "sqlite:///gligabao.db",
    "data_dir": Path("."),
    "anthropic_api_key": None,
    "anthropic_base_url": None,
    "model": "claude-sonnet-5-5",
    "memory_model": "claude-haiku-5-5",
    "max_answer_tokens": 16000,
    "model_timeout_seconds": 300,
    "prompt_cache": "auto",
    "max_working_per_user": 3,
    "max_working": 200,
    "auth": "off",
    "insecure": False,
    "allowed_hosts": [],
    "search_provider": "anthropic",
    "search_url": None,
    "search_api_key": None,
    "fetch_allow": [],
    "prices": {},
    "log_format": "text",
}

EVERY_KEY = """\
host = "0.0.0.0"
port = 9000
threads = 64
database_url = "postgresql://ann:pw@db/gligabao"
data_dir = "/var/lib/gligabao"
anthropic_api_key = "sk-ant-one"
anthropic_base_url = "http://127.0.0.1:11434"
model = "one"
memory_model = "two"
max_answer_tokens = 8000
model_timeout_seconds = 60.5
prompt_cache = "off"
max_working_per_user = 5
max_working = 10
auth = "keys"
insecure = true
allowed_hosts = ["research.example.com"]
search_provider = "searxng"
search_url = "https://search.example.com"
search_api_key = "key"
fetch_allow = ["10.0.0.0/8", "wiki:8000"]
log_format = "json"

[prices."llama-3"]
input = 1
output = 2.5
cache_read = 0
cache_write = 0.5
"""


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "gligabao.toml") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path | None = None, **environ: str) -> str:
    with pytest.raises(ConfigError) as caught:
        Config.load(path, environ=environ)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# Values


def test_every_key_has_its_default():
    config = Config.load(environ={})
    assert {key: getattr(config, key) for key in Config.model_fields} == DEFAULTS


def test_every_key_can_stand_in_the_file():
    write(EVERY_KEY)
    config = Config.load(environ={})
    assert all(getattr(config, key) != default for key, default in DEFAULTS.items())
    assert config.model_timeout_seconds == 60.5
    assert config.data_dir == Path("/var/lib/gligabao")
    assert config.prices == {"llama-3": ModelPrice(input=1, output=2.5, cache_read=0, cache_write=0.5)}


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("host", "::1", "::1"),
        ("port", "9000", 9000),
        ("threads", " 32 ", 32),
        ("database_url", "sqlite:////var/lib/a b%.db", "sqlite:////var/lib/a b%.db"),
        ("data_dir", "/tmp", Path("/tmp")),
        ("anthropic_api_key", "k", "k"),
        ("anthropic_base_url", "http://[::1]:8081/x", "http://[::1]:8081/x"),
        ("model", "m", "m"),
        ("memory_model", "mm", "mm"),
        ("max_answer_tokens", "1", 1),
        ("model_timeout_seconds", "2.5", 2.5),
        ("prompt_cache", "on", "on"),
        ("max_working_per_user", "1", 1),
        ("max_working", "7", 7),
        ("auth", "keys", "keys"),
        ("insecure", "TRUE", True),
        ("insecure", "0", False),
        ("allowed_hosts", '["a.example"]', ["a.example"]),
        ("search_provider", "brave", "brave"),
        ("search_url", "https://s.example", "https://s.example"),
        ("search_api_key", "k", "k"),
        ("fetch_allow", '["10.0.0.0/8"]', ["10.0.0.0/8"]),
        (
            "prices",
            '{"m": {"input": 1, "output": 2, "cache_read": 3, "cache_write": 4.0}}',
            {"m": ModelPrice(input=1, output=2, cache_read=3, cache_write=4)},
        ),
        ("log_format", "json", "json"),
    ],
)
def test_every_key_can_be_set_in_the_environment(key, text, value):
    assert getattr(Config.load(environ={f"GLIGABAO_{key.upper()}": text}), key) == value


def test_the_environment_wins_over_the_file_and_a_flag_over_both():
    write("port = 1\nthreads = 16\nmax_working = 9")
    environ = {"GLIGABAO_PORT": "2", "GLIGABAO_THREADS": "17"}
    config = Config.load(environ=environ, flags={"port": 3, "host": None})
    assert (config.port, config.threads, config.max_working, config.host) == (3, 17, 9, "127.0.0.1")


def test_a_named_file_is_read_in_place_of_the_one_in_the_working_directory():
    write("port = 1")
    other = write("port = 2", "other.toml")
    assert Config.load(environ={}).port == 1
    assert Config.load(other, environ={"GLIGABAO_CONFIG": "absent.toml"}).port == 2
    assert Config.load(environ={"GLIGABAO_CONFIG": "other.toml"}).port == 2


def test_unknown_variables_are_ignored():
    assert Config.load(environ={"GLIGABAO_URL": "x", "GLIGABAO_NONSENSE": "1", "PORT": "1"}).port == 8080


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"GLIGABAO_ANTHROPIC_API_KEY": "a", "ANTHROPIC_API_KEY": "b"}, "a"),
        ({"GLIGABAO_ANTHROPIC_API_KEY": "  ", "ANTHROPIC_API_KEY": "b\n"}, "b"),
        ({"ANTHROPIC_API_KEY": ""}, "of-the-file"),
    ],
)
def test_the_model_key_is_the_first_that_is_not_empty(environ, key):
    write('anthropic_api_key = "of-the-file"')
    assert Config.load(environ=environ).anthropic_api_key == key


def test_an_empty_model_key_is_none():
    write('anthropic_api_key = " "')
    assert Config.load(environ={}).anthropic_api_key is None
    assert Config(anthropic_api_key="").anthropic_api_key is None


def test_the_address_of_the_model_comes_from_either_variable():
    environ = {"ANTHROPIC_BASE_URL": "http://b.example"}
    assert Config.load(environ=environ).anthropic_base_url == "http://b.example"
    environ["GLIGABAO_ANTHROPIC_BASE_URL"] = "http://a.example"
    assert Config.load(environ=environ).anthropic_base_url == "http://a.example"


def test_a_server_of_ones_own_answers_from_memory_with_its_one_model():
    assert Config(model="llama", anthropic_base_url="http://127.0.0.1:11434").memory_model == "llama"
    assert Config(model="claude-opus-5").memory_model == "claude-haiku-5-5"
    assert Config(memory_model="small", anthropic_base_url="http://127.0.0.1:11434").memory_model == "small"


def test_the_settings_cannot_be_changed():
    with pytest.raises(ValidationError):
        Config().port = 1


# What is refused


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "prot (gligabao.toml): unknown key, did you mean port?"),
        ("[server]\nport = 1", "server (gligabao.toml): unknown key"),
        ('port = "80"', "port (gligabao.toml): must be a whole number"),
        ("port = 80.0", "port (gligabao.toml): must be a whole number"),
        ("port = true", "port (gligabao.toml): must be a whole number"),
        ("port = 65536", "port (gligabao.toml): must be at most 65535"),
        ("port = -1", "port (gligabao.toml): must be at least 0"),
        ("threads = 15", "threads (gligabao.toml): must be at least 16"),
        ("max_working = 0", "max_working (gligabao.toml): must be at least 1"),
        ("max_working_per_user = 0", "max_working_per_user (gligabao.toml): must be at least 1"),
        ("max_answer_tokens = 0", "max_answer_tokens (gligabao.toml): must be at least 1"),
        ("model_timeout_seconds = 0", "model_timeout_seconds (gligabao.toml): must be more than 0"),
        ("model_timeout_seconds = inf", "model_timeout_seconds (gligabao.toml): must be a finite number"),
        ('insecure = "yes"', "insecure (gligabao.toml): must be true or false"),
        ("model = 5", "model (gligabao.toml): must be a string"),
        ("data_dir = 5", "data_dir (gligabao.toml): must be a string, the path of a file or folder"),
        ('auth = "on"', 'auth (gligabao.toml): must be "off" or "keys"'),
        ("prompt_cache = true", 'prompt_cache (gligabao.toml): must be "auto", "on" or "off"'),
        ('log_format = "xml"', 'log_format (gligabao.toml): must be "text" or "json"'),
        ('search_provider = "bing"', 'must be "anthropic", "searxng", "brave" or "tavily"'),
        ('fetch_allow = "10.0.0.0/8"', "fetch_allow (gligabao.toml): must be a list"),
        ("fetch_allow = [1]", "fetch_allow.0 (gligabao.toml): must be a string"),
        ('allowed_hosts = ["http://a"]', "allowed_hosts.0 (gligabao.toml): must be a host name, without"),
        ("prices = 5", "prices (gligabao.toml): must be a table"),
        (
            "prices = {m = 5}",
            "prices.m (gligabao.toml): must be a table with input, output, cache_read and cache_write",
        ),
        ("[prices.m]\ninput = -1\noutput = 1\ncache_read = 1\ncache_write = 1", "prices.m.input (gligabao.toml)"),
        ("[prices.m]\ninput = 1\noutput = 1\ncache_read = 1", "prices.m.cache_write (gligabao.toml): is missing"),
        ("[prices.m]\ninputs = 1", "prices.m.inputs (gligabao.toml): unknown key, did you mean input?"),
        ('host = "127.0.0.1:8080"', "host (gligabao.toml): must be a host name or an address, without a port"),
        ('database_url = "mysql://x"', "database_url (gligabao.toml): must be sqlite:///FILE or postgresql://"),
        ('database_url = "sqlite:///"', "database_url (gligabao.toml): must be sqlite:///FILE or postgresql://"),
        ('database_url = "postgres:/x"', "database_url (gligabao.toml): must be sqlite:///FILE or postgresql://"),
        ('database_url = "postgres://a b/x"', "database_url (gligabao.toml): must be sqlite:///FILE or postgresql://"),
        ('database_url = "postgres://h:x/d"', "database_url (gligabao.toml): must name its host as HOST, HOST:PORT or"),
        ('database_url = "postgres://[::1/d"', "database_url (gligabao.toml): must name its host as HOST, HOST:PORT"),
        ('anthropic_base_url = "localhost:1"', "anthropic_base_url (gligabao.toml): must be a URL"),
        ('anthropic_base_url = "http://"', "anthropic_base_url (gligabao.toml): must be a URL"),
        ('search_url = "http://a:port"', "search_url (gligabao.toml): must be a URL"),
        ("port = ", "configuration file gligabao.toml: cannot be read as TOML"),
        ('"a\\nb" = 1', "a\\nb (gligabao.toml): unknown key"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_with_key_and_file(text, message):
    write(text)
    assert message in refusal()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("GLIGABAO_PORT", "80a", "port (GLIGABAO_PORT): must be a whole number"),
        ("GLIGABAO_PORT", "9" * 5000, "port (GLIGABAO_PORT): must be a whole number"),
        ("GLIGABAO_THREADS", "1", "threads (GLIGABAO_THREADS): must be at least 16"),
        ("GLIGABAO_INSECURE", "maybe", "insecure (GLIGABAO_INSECURE): must be true or false"),
        (
            "GLIGABAO_MODEL_TIMEOUT_SECONDS",
            "nan",
            "model_timeout_seconds (GLIGABAO_MODEL_TIMEOUT_SECONDS): must be a number",
        ),
        ("GLIGABAO_FETCH_ALLOW", "10.0.0.0/8", "fetch_allow (GLIGABAO_FETCH_ALLOW): must be JSON"),
        ("GLIGABAO_FETCH_ALLOW", '{"a": 1}', "fetch_allow (GLIGABAO_FETCH_ALLOW): must be a list"),
        ("GLIGABAO_PRICES", "[]", "prices (GLIGABAO_PRICES): must be a table"),
        ("ANTHROPIC_BASE_URL", "ftp://x", "anthropic_base_url (ANTHROPIC_BASE_URL): must be a URL"),
        ("GLIGABAO_CONFIG", "absent.toml", "configuration file absent.toml: there is no such file"),
    ],
)
def test_a_bad_variable_is_refused_in_one_line_that_names_it(name, text, message):
    assert message in refusal(**{name: text})


def test_all_faults_are_told_at_once_each_with_its_source():
    write("threads = 1")
    assert refusal(GLIGABAO_PORT="x") == (
        "port (GLIGABAO_PORT): must be a whole number; threads (gligabao.toml): must be at least 16"
    )


def test_a_file_that_cannot_be_read_is_refused():
    Path("folder").mkdir()
    assert "cannot be read: Is a directory" in refusal(Path("folder"))
    Path("latin.toml").write_bytes(b'model = "caf\xe9"')
    assert "cannot be read: it is not UTF-8" in refusal(Path("latin.toml"))
    assert refusal(Path("absent.toml")) == "configuration file absent.toml: there is no such file"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_keys(host):
    assert Config.load(environ={"GLIGABAO_HOST": host}).auth == "off"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "research.example.com"])
def test_an_open_address_without_keys_is_refused_with_what_to_do(host):
    message = refusal(GLIGABAO_HOST=host)
    assert "host (GLIGABAO_HOST)" in message
    assert 'auth = "keys"' in message
    assert "--insecure" in message
    Config.load(environ={"GLIGABAO_HOST": host, "GLIGABAO_AUTH": "keys"})
    Config.load(environ={"GLIGABAO_HOST": host}, flags={"insecure": True})


def test_an_address_in_brackets_is_the_address():
    assert Config(host="[::1]").host == "::1"


# Secrets

SECRETS = {
    "GLIGABAO_ANTHROPIC_API_KEY": "sk-ant-canary-1",
    "GLIGABAO_SEARCH_API_KEY": "canary-2",
    "GLIGABAO_DATABASE_URL": "postgresql://ann:canary%403@db/x?sslpassword=canary-4",
    "GLIGABAO_ANTHROPIC_BASE_URL": "https://u:canary-5@models.example",
    "GLIGABAO_SEARCH_URL": "https://u:canary-6@search.example",
}


def test_secrets_are_in_no_repr_and_no_description():
    config = Config.load(environ=SECRETS)
    for shown in (repr(config), str(config), f"{config}", repr(config.describe())):
        assert "canary" not in shown
    shown = {setting.key: setting.shown_value for setting in config.describe()}
    assert shown["anthropic_api_key"] == shown["search_api_key"] == "(set)"
    assert shown["database_url"] == "postgresql://ann:***@db/x?sslpassword=***"
    assert shown["search_url"] == "https://u:***@search.example"


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
@pytest.mark.parametrize(
    "rest",
    [
        "",
        "/x",
        "db/x",
        "ann@db:5432/x",
        "ann:pw@db",
        "ann:p%40w@[::1]:5432/x?sslmode=require",
        "ann:pw#1@db/x",
        "ann:pw@one:5432,two:5433/x?target_session_attrs=read-write",
        "%2Fvar%2Frun%2Fpostgresql/x",
        "/x?host=/var/run/postgresql&port=5433",
    ],
)
def test_an_address_of_postgres_is_taken_as_libpq_takes_it(scheme, rest):
    url = f"{scheme}://{rest}"
    assert psycopg.conninfo.conninfo_to_dict(url) == psycopg.conninfo.conninfo_to_dict(f"postgresql://{rest}")
    config = Config.load(environ={"GLIGABAO_DATABASE_URL": url})
    assert config.database_url == url
    assert "pw" not in repr(config)


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_the_password_in_an_address_of_postgres_is_a_secret(scheme):
    config = Config(database_url=f"{scheme}://ann:can%2Fary@db/x?password=canary-2")
    assert {"can%2Fary", "can/ary", "canary-2"} <= set(config.secrets())
    shown = {setting.key: setting.shown_value for setting in config.describe()}
    assert shown["database_url"] == f"{scheme}://ann:***@db/x?password=***"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("GLIGABAO_ANTHROPIC_API_KEY", "sk-ant-canary with a blank"),
        ("GLIGABAO_SEARCH_API_KEY", "canary\nbreak"),
        ("GLIGABAO_DATABASE_URL", "postgres://u:canary@host:port/x"),
        ("GLIGABAO_DATABASE_URL", "postgresql://u:canary@host:port/x"),
        ("GLIGABAO_DATABASE_URL", "postgres://u:can@ary@host/x"),
        ("GLIGABAO_ANTHROPIC_BASE_URL", "htp://u:canary@host"),
        ("GLIGABAO_PORT", "canary"),
        ("GLIGABAO_PRICES", '{"canary": canary}'),
    ],
)
def test_a_refused_value_is_not_repeated(name, text):
    assert "canary" not in refusal(**{name: text})


def test_a_secret_of_the_wrong_type_in_the_file_is_not_repeated():
    write("anthropic_api_key = 12345678\nsearch_api_key = ['canary']")
    message = refusal()
    assert "12345678" not in message
    assert "canary" not in message


def test_errors_of_a_config_made_by_hand_hold_no_value():
    with pytest.raises(ValidationError) as caught:
        Config(database_url="mysql://u:canary@host", anthropic_api_key="can ary")
    assert "canary" not in str(caught.value)
    assert "can ary" not in str(caught.value)


def test_the_secrets_for_the_log_are_the_keys_and_passwords_in_both_spellings():
    found = set(Config.load(environ=SECRETS).secrets())
    assert found >= {"sk-ant-canary-1", "canary-2", "canary%403", "canary@3", "canary-4", "canary-5", "canary-6"}
    assert list(Config().secrets()) == []


# Where a value came from


def test_the_description_says_where_each_value_came_from():
    write("port = 1\nanthropic_api_key = 'k'")
    config = Config.load(
        environ={"GLIGABAO_THREADS": "20", "ANTHROPIC_BASE_URL": "http://m.example"},
        flags={"database_url": "sqlite:///x"},
    )
    described = {setting.key: setting for setting in config.describe()}
    assert list(described) == list(Config.model_fields)
    sources = {key: setting.source for key, setting in described.items() if setting.source != "default"}
    assert sources == {
        "port": "gligabao.toml",
        "anthropic_api_key": "gligabao.toml",
        "threads": "GLIGABAO_THREADS",
        "anthropic_base_url": "ANTHROPIC_BASE_URL",
        "database_url": "--database-url",
    }
    json.dumps([setting.shown_value for setting in config.describe()])
