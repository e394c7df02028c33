"""A server from a config."""

import socket
from collections.abc import Callable
from pathlib import Path

from maxtext.config.attention_dp import announcement
from maxtext.config.schema import Config
from maxtext.decoding.encoding import load_encoder
from maxtext.decoding.load import load_engine, prepare
from maxtext.models.backend import config_errors
from maxtext.serving.generation import Service
from maxtext.serving.http import Server
from maxtext.serving.meters import Meters
from maxtext.serving.port import listen
from maxtext.serving.prompts import token_texts
from maxtext.serving.worker import Worker


def serve(config: Config, listener: socket.socket, announce: Callable[[str], None]) -> None:
    """Serves until a signal; then what runs is finished, or nothing after a second signal.

    Args:
        listener: Bound to its address.
        announce: Told what it does, and where it is once it is ready.

    Raises:
        ConfigError: As `listen` and `load_engine`.
    """
    service = load_service(config, announce)
    url = listen(config.serve, listener)
    Server(service, lambda: announce(f"serving {service.model} on {url}")).run([listener])
    if service.worker.failure is not None:
        raise service.worker.failure


def load_service(config: Config, announce: Callable[[str], None]) -> Service:
    """The model of a config with its engine.

    Raises:
        ConfigError: As `load_engine`, or the chat template is none.
    """
    served = prepare(config)
    shared = announcement(config.mesh, config.model)
    if shared is not None:
        announce(shared)
    with config_errors():
        encoder = load_encoder(config, served.tokenizer)
    engine = load_engine(served)
    if config.serve.serve_warm_up:
        engine.warm_up(announce)
    worker = Worker(engine, max_open=config.decode.max_num_seqs + config.serve.serve_max_waiting)
    return Service(
        model=model_name(config),
        config=config.serve,
        max_length=engine.max_length,
        encoder=encoder,
        texts=token_texts(served.tokenizer),
        worker=worker,
        meters=Meters(worker),
    )


def model_name(config: Config) -> str:
    """What clients call the model."""
    named = config.serve.served_model_name or config.run.run_name
    return named or Path(config.checkpoint.load_parameters_path).name or config.run.model_name
