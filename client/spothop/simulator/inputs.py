"""What a simulation is given: the ten inputs of the thesis (section 6.2.2) and ours.

Every latency is a number or [low, high), drawn anew each time. A file that makes no sense is
refused with the field, the value and a hint. Bounds are wide, and keep all arithmetic finite.
"""

from __future__ import annotations

import difflib
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    AfterValidator,
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


LATENCY_MAX_S = 1e9  # 30 years
LIFE_MAX_S = 1e15  # as good as never


def _bounds(value: Any) -> Any:
    if isinstance(value, Bounds):
        return value
    pair = value if isinstance(value, (list, tuple)) else [value, value]
    if len(pair) != 2 or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in pair):
        raise ValueError(f"{_shown(value)} is neither seconds nor [low, high]")
    if not all(0 <= v <= LATENCY_MAX_S for v in pair):
        raise ValueError(f"{_shown(value)}: seconds are 0 or more, and {LATENCY_MAX_S:g} at most")
    low, high = (float(v) for v in pair)
    if low > high:
        raise ValueError(f"low {low:g} is above high {high:g}: write [low, high]")
    return Bounds(low, high)


def _list(value: Any) -> Any:
    return value if isinstance(value, (list, tuple)) else [value]


def _number(value: Any) -> Any:
    """YAML reads `yes` and `on` as true, which Python takes for 1."""
    if isinstance(value, bool):
        raise ValueError(f"{value} is no number")
    return value


def _printable(text: str) -> str:
    if not text.isprintable() or not 0 < len(text) <= 100:
        raise ValueError(f"{_shown(text)}: write 1 to 100 characters that can be printed")
    return text


def _once(names: list[str]) -> list[str]:
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{_shown(name)} stands there more than once: name each once")
    return names


def _span(bounds: Bounds | None) -> str:
    """As it is written in a file."""
    low, high = bounds or Bounds(0, 0)
    return f"{low:g}" if low == high else f"[{low:g}, {high:g}]"


def _shown(value: Any) -> str:
    try:
        return reprlib.repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"


Seconds = Annotated[Bounds, BeforeValidator(_bounds)]
Count = Annotated[int, BeforeValidator(_number), Field(gt=0, le=10**12)]
Life = Annotated[float, BeforeValidator(_number), Field(ge=1e-3, le=LIFE_MAX_S)]
Lives = Annotated[list[Life], Field(min_length=1), BeforeValidator(_list)]
"""The k-th interval uses the k-th figure; the last repeats."""
Hours = Annotated[float, BeforeValidator(_number), Field(ge=0.01, le=10_000)]
Price = Annotated[float, BeforeValidator(_number), Field(ge=1e-6, le=1e6)]
Name = Annotated[str, AfterValidator(_printable)]


class Strict(BaseModel):
    """Unknown keys name the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        known = [*cls.model_fields, *(["mttp_s"] if "lives" in cls.model_fields else [])]
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                near = difflib.get_close_matches(str(key), known, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ValueError(f"there is no input {_shown(key)}; {hint}")
        return data


class ExponentialSpec(Strict):
    """Constant hazard; what the injector does."""

    kind: Literal["exponential"] = "exponential"
    mttp_s: Lives


class WeibullSpec(Strict):
    """Below shape 1 young VMs die more: 0.57 to 0.79 on AWS."""

    kind: Literal["weibull"]
    mttp_s: Lives
    shape: Annotated[float, BeforeValidator(_number), Field(ge=0.05, le=1_000)]


class BathtubSpec(Strict):
    """Google's preemptible VMs: F(t) = A (1 - e^(-t/t1) + e^((t-b)/t2)), times in hours."""

    kind: Literal["bathtub"]
    a: Annotated[float, BeforeValidator(_number), Field(gt=0, le=10)] = 0.638
    t1_h: Hours = 0.96
    t2_h: Hours = 1.09
    b_h: Hours = 25.4


class CsvSpec(Strict):
    """Measured lives: `lifetime_s` with `end`, or `ms,add|remove,node` events."""

    kind: Literal["csv"]
    path: Path


class ReplaySpec(Strict):
    """These very lives, in this order; after the last one no more preemption."""

    kind: Literal["replay"]
    lives_s: list[Life]


class ZonesSpec(Strict):
    """Availability of zones over time, repeated for ever; trials start anywhere in it."""

    kind: Literal["zones"]
    path: Path
    zones: Annotated[list[str], Field(min_length=1), AfterValidator(_once)] | None = None
    """Which zones the job may use; None is all of them."""


LivesSpec = Annotated[
    ExponentialSpec | WeibullSpec | BathtubSpec | CsvSpec | ReplaySpec | ZonesSpec,
    Field(discriminator="kind"),
]

KINDS = ("exponential", "weibull", "bathtub", "csv", "replay", "zones")

VM_PRICES = {
    "Standard_NC12s_v3": (2.3, 6.2),
    "p3.2xlarge": (0.92, 3.06),
}
"""USD an hour, spot and on-demand: the thesis's VM, and the one of the AWS zone traces."""


class Inputs(Strict):
    """One simulation. Times in seconds, prices in USD an hour."""

    name: Name = "simulation"
    steps: Count
    step_s: Seconds
    save_s: Seconds
    """Delta."""
    backup_s: Seconds
    """Beta."""
    allocation_s: Seconds
    preparation_s: Seconds | None = None
    """Both together, where only that is known: none of it then waits for the old VM's save."""
    boot_s: Seconds | None = None
    """Of preparation: what needs no checkpoint (image, environment)."""
    load_s: Seconds | None = None
    """Of preparation: what begins once the newest save of the old VM is durable, or can be no more
    (restore, process)."""
    boot_overlaps: bool = False
    """The boot goes on during the allocation: max(allocation, boot) instead of their sum."""
    grace_s: Seconds
    lives: LivesSpec
    vm: Name = "Standard_NC12s_v3"
    spot_price: Price | None = None
    on_demand_price: Price | None = None
    policies: Annotated[list[str], Field(min_length=1)] = [
        "thesis",
        "notice-aware",
        "none",
        "on-demand",
    ]
    periodic_every: Count | None = None
    """The user's own saves, in steps."""
    min_interval_s: Annotated[float, BeforeValidator(_number)] = Field(
        default=10, ge=0, le=LATENCY_MAX_S
    )
    """Least time between two insurance saves; not of static ones."""
    notices_kept: Annotated[float, BeforeValidator(_number)] = Field(default=0.95, ge=0, le=1)
    """Share of preemptions that come with their notice; clouds call them best effort."""
    replacement: Literal["notice", "kill"] = "notice"
    """When the next VM is asked for."""
    trials: Annotated[int, BeforeValidator(_number)] = Field(default=100, ge=1, le=10**6)
    seed: Annotated[int, BeforeValidator(_number)] = Field(default=1, ge=0, lt=2**63)
    stall_s: Seconds | None = None
    """How long a save stops training; None: saves are synchronous (delta)."""
    stream: bool = False
    """Saves are uploaded while they are written: max(delta, beta) instead of their sum."""
    margin_s: Annotated[float, BeforeValidator(_number)] = Field(default=0, ge=0, le=LATENCY_MAX_S)
    """Kept free before the kill, where it is decided whether and when an emergency save fits."""
    emergency: Literal["once", "early+late"] = "early+late"
    """After a notice: one save at once, as the thesis does; or that one, training on, and another
    as late as it fits. Neither slows the other's upload."""
    detection_s: Seconds = Bounds(0, 0)
    """From a kill without notice to the request for the next VM."""
    mid_step: bool = False
    """Emergency saves do not wait for the end of the step (science: needs a consistent copy)."""
    hazard: bool = True
    """`notice-aware` follows the hazard of a VM's age where lives are not exponential."""
    knowledge: Literal["exact", "learned"] = "exact"
    """The policies know the true MTTP and share of notices, or learn them from their trial."""
    prior_mttp_s: Life = 10_800.0
    """Believed before the first life, when learned."""

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """`mttp_s: 10800` stands for exponential lives."""
        if not isinstance(data, dict) or "mttp_s" not in data:
            return data
        if "lives" in data:
            raise ValueError("give mttp_s (exponential lives) or lives, not both")
        data = dict(data)
        data["lives"] = {"kind": "exponential", "mttp_s": data.pop("mttp_s")}
        return data

    @field_validator("step_s")
    @classmethod
    def _steps_take_time(cls, value: Bounds) -> Bounds:
        if value.low < 1e-6:
            raise ValueError(f"{value.low:g}: a step takes more than 0 seconds, 1e-06 at least")
        return value

    @field_validator("policies")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            Arm.of(name)
        return names

    @model_validator(mode="after")
    def _prepared(self) -> Inputs:
        split = {"boot_s": self.boot_s, "load_s": self.load_s}
        given = [name for name, value in split.items() if value is not None]
        if self.preparation_s is not None and given:
            raise ValueError(
                f"{given[0]}: {_span(split[given[0]])}: preparation_s stands for boot_s and load_s "
                "together: give either it or both of them"
            )
        if self.preparation_s is None and len(given) < 2:
            missing = next(name for name in split if name not in given)
            raise ValueError(
                f"{missing}: is missing; a VM prepares for boot_s, until it could load a "
                "checkpoint, and for load_s, until it trains (preparation_s: both together)"
            )
        return self

    @model_validator(mode="after")
    def _leaves_time(self) -> Inputs:
        if self.margin_s > 0 and self.margin_s >= self.grace_s.high:
            raise ValueError(
                f"margin_s: {self.margin_s:g}: leaves nothing of a grace period of "
                f"{_span(self.grace_s)} s: lower it"
            )
        return self

    @model_validator(mode="after")
    def _priced(self) -> Inputs:
        both = self.spot_price is not None and self.on_demand_price is not None
        if not both and self.vm not in VM_PRICES:
            raise ValueError(
                f"no price of VM type {self.vm!r} is known ({', '.join(VM_PRICES)} are): "
                "give spot_price and on_demand_price"
            )
        return self

    @model_validator(mode="after")
    def _ends(self) -> Inputs:
        """The end of the longest job comes before that of the longest life."""
        work_s = self.steps * self.step_s.high
        if work_s > LIFE_MAX_S / 1_000:
            raise ValueError(
                f"steps: {self.steps} steps of {self.step_s.high:g} s take {work_s:.3g} s, more "
                f"than {LIFE_MAX_S / 1_000:g} s (30,000 years): lower steps or step_s"
            )
        return self

    @property
    def boot(self) -> Bounds:
        """The part of preparation that waits for nothing."""
        return self.boot_s or self.preparation_s or Bounds(0, 0)

    @property
    def load(self) -> Bounds:
        """The part of preparation that waits for the old VM's newest save."""
        return self.load_s or Bounds(0, 0)

    @property
    def prepares_s(self) -> float:
        """Mean time from running to training, where no old image is waited for."""
        hidden = self.allocation_s.mean if self.boot_overlaps else 0.0
        return max(self.boot.mean - hidden, 0.0) + self.load.mean

    @property
    def restart_s(self) -> float:
        """R: mean allocation and preparation."""
        return self.allocation_s.mean + self.prepares_s

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
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # no text, no date, too deep
        raise InputError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no mapping; it begins with `steps: 100000`, say")
    lives = data.get("lives")
    if isinstance(lives, dict) and isinstance(lives.get("path"), str):
        data["lives"] = {**lives, "path": str(path.parent / lives["path"])}
    return data


def _line(fault: Any) -> str:
    """`field: value: what is wrong`; our own texts bring the value along."""
    loc = fault["loc"]
    where = ".".join(map(str, loc if loc[:1] != ("lives",) else ("lives", *loc[2:])))  # no kind
    kind, text = fault["type"], fault["msg"].removeprefix("Input ")
    if kind == "missing":
        text = "is missing; docs/checkpointing.md has a file to begin with"
    elif kind == "union_tag_not_found":
        text = f"{_shown(fault['input'])}: say which kind it is: {', '.join(KINDS)}"
    elif kind == "value_error":
        text = text.removeprefix("Value error, ")
    else:
        text = f"{_shown(fault['input'])}: {text}"
    return f"{where}: {text}" if where else text
