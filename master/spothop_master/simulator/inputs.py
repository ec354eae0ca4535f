"""What a simulation is given: the ten inputs of the thesis (section 6.2.2) and ours.

Every latency is a number or [low, high), drawn anew each time. A file that makes no sense is
refused with the field, the fact and the way out.
"""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from spothop.policy import UnknownPolicy, parse


class InputError(ValueError):
    """The input makes no sense; the message has a line for each fault."""


class Bounds(NamedTuple):
    """A latency in seconds, uniform in [low, high)."""

    low: float
    high: float

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    @property
    def width(self) -> float:
        return self.high - self.low


def _bounds(value: Any) -> Any:
    if isinstance(value, Bounds):
        return value
    pair = value if isinstance(value, (list, tuple)) else [value, value]
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in pair):
        raise ValueError(f"{value!r} is neither seconds nor [low, high]")
    low, high = (float(v) for v in pair)
    if not (low >= 0 and high < math.inf):
        raise ValueError(f"{value!r}: seconds are 0 or more, and finite")
    if low > high:
        raise ValueError(f"low {low:g} is above high {high:g}: write [low, high]")
    return Bounds(low, high)


def _list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


Seconds = Annotated[Bounds, BeforeValidator(_bounds)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Positives = Annotated[list[Positive], Field(min_length=1), BeforeValidator(_list)]
"""The k-th interval uses the k-th figure; the last repeats."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExponentialSpec(Strict):
    """Constant danger; what the injector does."""

    kind: Literal["exponential"] = "exponential"
    mttp_s: Positives


class WeibullSpec(Strict):
    """Below shape 1 young VMs die more: 0.57 to 0.79 on AWS."""

    kind: Literal["weibull"]
    mttp_s: Positives
    shape: Positive


class BathtubSpec(Strict):
    """Google's preemptible VMs: F(t) = A (1 - e^(-t/t1) + e^((t-b)/t2)), times in hours."""

    kind: Literal["bathtub"]
    a: Positive = 0.638
    t1_h: Positive = 0.96
    t2_h: Positive = 1.09
    b_h: Positive = 25.4


class CsvSpec(Strict):
    """Measured lives: `lifetime_s` with `end`, or `ms,add|remove,node` events."""

    kind: Literal["csv"]
    path: Path


class ReplaySpec(Strict):
    """These very lives, in this order; after the last one no more preemption."""

    kind: Literal["replay"]
    lives_s: list[Positive]


class ZonesSpec(Strict):
    """Availability of zones over time, repeated for ever; trials start anywhere in it."""

    kind: Literal["zones"]
    path: Path
    zones: list[str] | None = None
    """Which zones the job may use; None is all of them."""


LivesSpec = Annotated[
    ExponentialSpec | WeibullSpec | BathtubSpec | CsvSpec | ReplaySpec | ZonesSpec,
    Field(discriminator="kind"),
]

VM_PRICES = {
    "Standard_NC12s_v3": (2.3, 6.2),
    "p3.2xlarge": (0.92, 3.06),
}
"""USD an hour, spot and on-demand: the thesis's VM, and the one of the AWS zone traces."""


class Inputs(Strict):
    """One simulation. Times in seconds, prices in USD an hour."""

    name: str = "simulation"
    steps: int = Field(gt=0, le=10**12)
    step_s: Seconds
    save_s: Seconds
    """Delta."""
    backup_s: Seconds
    """Beta."""
    allocation_s: Seconds
    preparation_s: Seconds
    grace_s: Seconds
    lives: LivesSpec
    vm: str = "Standard_NC12s_v3"
    spot_price: Positive | None = None
    on_demand_price: Positive | None = None
    policies: Annotated[list[str], Field(min_length=1)] = [
        "thesis",
        "notice-aware",
        "none",
        "on-demand",
    ]
    periodic_every: int | None = Field(default=None, gt=0)
    """The user's own saves, in steps."""
    notices_kept: float = Field(default=1.0, ge=0, le=1)
    """Share of preemptions that come with their notice."""
    replacement: Literal["notice", "kill"] = "notice"
    """When the next VM is asked for."""
    trials: int = Field(default=100, ge=1, le=10**6)
    seed: int = Field(default=1, ge=0)
    stall_s: Seconds | None = None
    """How long a save stops training; None: saves are synchronous (delta)."""
    detection_s: Seconds = Bounds(0, 0)
    """From a kill without notice to the request for the next VM."""
    mid_step: bool = False
    """Emergency saves do not wait for the end of the step (science: needs a consistent copy)."""
    hazard: bool = True
    """`notice-aware` follows the danger of a VM's age where lives are not exponential."""
    knowledge: Literal["exact", "learned"] = "exact"
    """The policies know the true MTTP and share of notices, or learn them from their trial."""
    prior_mttp_s: Positive = 10_800.0
    """Believed before the first life, when learned."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """`mttp_s: 10800` stands for exponential lives; unknown keys name the nearest known."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if "mttp_s" in data:
            if "lives" in data:
                raise ValueError("give mttp_s (exponential lives) or lives, not both")
            data["lives"] = {"kind": "exponential", "mttp_s": data.pop("mttp_s")}
        for key in data.keys() - cls.model_fields.keys():
            near = difflib.get_close_matches(str(key), [*cls.model_fields, "mttp_s"], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ValueError(f"there is no input {key!r}{hint}")
        return data

    @field_validator("step_s")
    @classmethod
    def _steps_take_time(cls, value: Bounds) -> Bounds:
        if value.low <= 0:
            raise ValueError("a step takes more than 0 seconds")
        return value

    @field_validator("policies")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            Arm.of(name)
        return names

    @model_validator(mode="after")
    def _priced(self) -> Inputs:
        both = self.spot_price is not None and self.on_demand_price is not None
        if not both and self.vm not in VM_PRICES:
            raise ValueError(
                f"no price of VM type {self.vm!r} is known ({', '.join(VM_PRICES)} are): "
                "give spot_price and on_demand_price"
            )
        return self

    @property
    def prices(self) -> tuple[float, float]:
        """Spot and on-demand."""
        spot, on_demand = VM_PRICES.get(self.vm, (0.0, 0.0))
        return self.spot_price or spot, self.on_demand_price or on_demand


class Arm(NamedTuple):
    """One policy as it is simulated."""

    name: str
    policy: str | None
    """As `spothop.policy` names it; None is on-demand."""
    emergency: Literal["never", "fits", "always"]
    """After a notice: no save, one where the thesis's rule says so, or a try in any case."""

    @classmethod
    def of(cls, name: str) -> Arm:
        """`static-51` saves every 51 steps and ignores notices, as in the thesis's tables;
        `static-51+emergency` is what our product does. Raises ValueError for unknown names."""
        if name == "on-demand":
            return cls(name, None, "never")
        bare, plus, extra = name.partition("+")
        policy = bare.replace("static-", "static:")
        try:
            kind, _ = parse(policy)
        except UnknownPolicy as error:
            raise ValueError(f"{error} (or on-demand)") from error
        if plus and (extra != "emergency" or kind not in ("static", "none")):
            raise ValueError(f"policy {name!r}: only static and none take +emergency")
        if plus or kind in ("thesis-always", "notice-aware"):
            return cls(name, policy, "always")
        return cls(name, policy, "fits" if kind == "thesis" else "never")


def make(data: Any) -> Inputs:
    """Validated inputs from a mapping. Raises InputError."""
    try:
        return Inputs.model_validate(data)
    except ValidationError as error:
        lines = [_line(fault) for fault in error.errors()]
        raise InputError("\n".join(lines)) from error


def load(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; relative trace paths are relative to it. Raises InputError."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no mapping; it begins with `steps: 100000`, say")
    lives = data.get("lives")
    if isinstance(lives, dict) and isinstance(lives.get("path"), str):
        data["lives"] = {**lives, "path": str(path.parent / lives["path"])}
    return data


def _line(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    text = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {text}" if where else text
