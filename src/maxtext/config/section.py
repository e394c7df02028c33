"""What every key is made of: number types, and the frozen group that it stands in."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

type Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
type Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
type Count = Annotated[int, Field(ge=-1)]
type Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]
type FloatType = Literal["float32", "bfloat16", "float16"]


def key(doc: str, *, name: str | None = None) -> Any:
    """Declares a key; `name` is what the user types where it differs from the field."""
    return Field(alias=name, description=doc)


class Section(BaseModel):
    """A frozen group of keys; hashable, so that it can be a static argument of `jax.jit`."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_by_name=True,
        protected_namespaces=(),
    )
