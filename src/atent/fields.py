"""What a method is: a frozen, checked dataclass whose fields are its hyper-parameters."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Size = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Scale = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Tolerance = Annotated[float, Field(ge=0, lt=1)]

Start = Literal["center", "near", "uniform", "unboxed", "corner", "gaussian"]
Direction = Literal["steepest", "raw"]
Projection = Literal["last", "every", "never"]
Mode = Literal["eval", "train"]
Pull = Scale | Literal["auto"]

if TYPE_CHECKING:
    from dataclasses import dataclass as _dataclass
    from typing import TypeVar, dataclass_transform

    T = TypeVar("T")

    @dataclass_transform(frozen_default=True)
    def method(cls: type[T]) -> type[T]: ...

else:
    from pydantic.dataclasses import dataclass as _dataclass

    def method(cls):
        """Make `cls` a frozen dataclass that checks its fields' types and ranges and refuses unknown ones."""
        return _dataclass(frozen=True, config=ConfigDict(extra="forbid"))(cls)
