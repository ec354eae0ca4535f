"""What the messages of both agents and users are made of."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

PROTOCOL = 1
"""Version of the agent protocol; the master refuses another one and says which it speaks."""


class SaveKind(str, Enum):
    """Who wanted a save: the user, the policy, or a notice."""

    PERIODIC = "periodic"
    INSURANCE = "insurance"
    EMERGENCY = "emergency"


class Dialect(str, Enum):
    """Which cloud's metadata endpoint a VM has."""

    AWS = "aws"
    AZURE = "azure"
    GCP = "gcp"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


PositiveSeconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Pool(Strict):
    """The unit of statistics and prices."""

    cloud: str
    region: str
    zone: str
    vm: str
    spot: bool = True

    def __str__(self) -> str:
        return f"{self.cloud}/{self.zone}/{self.vm}/{'spot' if self.spot else 'on-demand'}"


class StorageSpec(Strict):
    url: str
    """Any URL of obstore; the chain lives under `jobs/<job>/` in it."""
    options: dict[str, str] = Field(default_factory=dict)
    """Store options as obstore takes them; never secrets."""


class Insurance(Strict):
    """When the next insurance save is due; replaces the one before."""

    at_step: int
    tau_s: float
    """The agent goes on from this after each save while the master is away."""
    reason: str
