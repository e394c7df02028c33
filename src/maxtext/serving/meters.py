"""What /metrics shows, in Prometheus's text form."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from maxtext.serving.worker import Worker

_SECONDS = tuple(base * 10.0**power for power in range(-3, 3) for base in (1, 2, 5))


class Meters:
    """Counts and times of one server.

    Attributes:
        requests: Answered, by endpoint and status; 499: the client left first.
        prompt_tokens: Of accepted requests.
        generated_tokens: New ones.
        first_token: From the request's arrival to its first token.
        next_token: Between two tokens of a request.
        request_seconds: From the request's arrival to its end, by endpoint.
    """

    def __init__(self, worker: Worker) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "maxtext_requests",
            "Requests, by endpoint and HTTP status; 499: the client left.",
            ("endpoint", "status"),
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "maxtext_prompt_tokens", "Tokens of prompts.", registry=registry
        )
        self.generated_tokens = Counter(
            "maxtext_generated_tokens", "New tokens.", registry=registry
        )
        self.first_token = Histogram(
            "maxtext_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.next_token = Histogram(
            "maxtext_time_per_output_token_seconds",
            "Between two tokens of a request.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.request_seconds = Histogram(
            "maxtext_request_seconds",
            "From a request's arrival to its end.",
            ("endpoint",),
            buckets=_SECONDS,
            registry=registry,
        )
        for name, doc, value in (
            ("requests_open", "Requests that run or wait.", lambda: worker.num_open),
            ("requests_running", "Requests with pages.", lambda: worker.counts.running),
            ("requests_waiting", "Requests without pages.", lambda: worker.counts.waiting),
            ("preemptions", "Requests that lost their pages.", lambda: worker.counts.preempted),
            ("pages", "Pages of the cache.", lambda: worker.counts.pages),
            ("pages_free", "Pages that no request uses.", lambda: worker.counts.free_pages),
        ):
            Gauge(f"maxtext_{name}", doc, registry=registry).set_function(value)

    def text(self) -> bytes:
        """All of them."""
        return generate_latest(self._registry)
