"""A trainer without any training: a hash chain whose last link shows every lost or repeated step.

Standard library only, starts in milliseconds: for trying out failures. The lines added for spothop
end in `# spothop`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import spothop as sp  # spothop

CHECKPOINT = Path("ckpt.json")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="completed steps at the end")
    parser.add_argument("--step-ms", type=float, default=20, help="length of a step")
    parser.add_argument("--save-every", type=int, default=25, help="steps between saves")
    parser.add_argument("--save-ms", type=float, default=0, help="length of a save")
    parser.add_argument("--payload-kb", type=int, default=1, help="size of a checkpoint")
    return parser.parse_args()


def next_link(value: str, step: int) -> str:
    """The state after `step` (from 1): depends on every state before it."""
    return hashlib.sha256(f"{value}:{step}".encode()).hexdigest()[:16]


def save(path: Path, *, step: int, value: str, payload_kb: int) -> None:
    payload = hashlib.shake_256(value.encode()).hexdigest(payload_kb * 512)
    path.write_text(json.dumps({"step": step, "value": value, "payload": payload}))


def main() -> None:
    args = arguments()
    step, value = 0, ""
    checkpoint = sp.latest_checkpoint()  # spothop
    if checkpoint:  # spothop
        saved = json.loads(checkpoint.read_text())  # spothop
        step, value = saved["step"], saved["value"]  # spothop
        print(f"resumed at step {step}", flush=True)  # spothop

    while step < args.steps:
        with sp.step_context():  # spothop
            time.sleep(args.step_ms / 1000)
            step += 1
            value = next_link(value, step)
        sp.log(value=int(value[:4], 16))  # spothop
        print(f"step {step} value {value}", flush=True)
        if step == args.steps or step % args.save_every == 0 or sp.check_save():  # spothop
            time.sleep(args.save_ms / 1000)
            save(CHECKPOINT, step=step, value=value, payload_kb=args.payload_kb)
            sp.backup(CHECKPOINT)  # spothop

    outputs = Path(os.environ.get("SPOTHOP_OUTPUTS", "outputs"))
    outputs.mkdir(parents=True, exist_ok=True)
    (outputs / "result.json").write_text(json.dumps({"step": step, "value": value}))
    print(f"done at step {step}, value {value}", flush=True)
    sp.done()  # spothop


if __name__ == "__main__":
    main()
