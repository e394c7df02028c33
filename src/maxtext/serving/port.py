"""The port that a server listens on; imports nothing that takes time."""

import contextlib
import errno
import socket
from collections.abc import Generator

from maxtext.config.errors import ConfigError, Problem
from maxtext.config.schema_serving import ServeConfig

_BACKLOG = 2048


@contextlib.contextmanager
def bound(config: ServeConfig) -> Generator[socket.socket]:
    """A socket at host and port, which takes no connections before `listen`.

    Raises:
        ConfigError: There is no such host, or the port is taken.
    """
    with _port_errors(config):
        one = _bind(config)
    with one:
        yield one


def listen(config: ServeConfig, one: socket.socket) -> str:
    """Takes connections from now on, and says at which address.

    Raises:
        ConfigError: Another program took the port meanwhile.
    """
    with _port_errors(config):
        one.listen(_BACKLOG)
    host, port = one.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(config: ServeConfig) -> socket.socket:
    """A socket at host and port, which takes no connections yet."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        config.serve_host, config.serve_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


@contextlib.contextmanager
def _port_errors(config: ServeConfig) -> Generator[None]:
    """Turns what the system says of host and port into a ConfigError."""
    try:
        yield
    except OSError as error:
        host, port = config.serve_host, config.serve_port
        if isinstance(error, socket.gaierror):
            problem = Problem("serve_host", "there is no such host", value=host)
        elif error.errno == errno.EADDRINUSE:
            hint = "serve_port=0 takes a free one"
            message = f"another program listens there, on {host}"
            problem = Problem("serve_port", message, value=str(port), hint=hint)
        else:
            why = f"cannot be listened on: {error.strerror}"
            problem = Problem("", f"{host}:{port} {why}")
        raise ConfigError([problem]) from error
