"""The agent's program: reads argv, environment and clock; nobody else does."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from spothop.wire import AgentConfig
from spothop_agent import chaos, process_tree, watch
from spothop_agent.agent import Agent
from spothop_agent.clock import SystemClock

FAILED = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="spothop_agent", description="The agent of one VM.")
    parser.add_argument("--config", type=Path, required=True, help="an AgentConfig as JSON")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(message)s"
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line per request otherwise
    config = AgentConfig.model_validate_json(arguments.config.read_bytes())
    Path(config.directory).mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ)  # noqa: TID251  this is the agent's one reader
    try:
        return asyncio.run(_run(config, environment))
    except Exception:  # of any kind: it is logged, and the next agent takes over
        logging.getLogger(__name__).exception("the agent ends; its supervisor starts it again")
        return FAILED


async def _run(config: AgentConfig, environment: dict[str, str]) -> int:
    clock = SystemClock()
    text = environment.get("SPOTHOP_CHAOS", "")
    process_tree.adopt_orphans()
    async with watch.metadata_client() as metadata:

        def watcher(grace_s: float) -> AsyncIterator[watch.Notice]:
            return watch.watch(
                config.dialect,
                config.metadata,
                vm_name=None,
                client=metadata,
                clock=clock.monotonic,
                sleep=asyncio.sleep,
                grace_s=grace_s,
            )

        agent = Agent(
            config,
            clock=clock,
            rng=random.Random(),
            chaos=chaos.from_text(text, Path(config.directory)),
            base_env=environment,
            watcher=watcher,
            acknowledge=watch.acknowledge,
            subreaper=True,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, agent.leave.set)
        return await agent.run()


def leave(code: int) -> None:
    """End at once: an upload in a thread must not keep an agent alive that has to end."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
