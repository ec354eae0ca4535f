"""Mutation testing (`make mutants`): which single changes of the code does no test notice?

mutmut makes the changes and runs the tests; this says what to mutate, with which tests, and prints
what is left. The modules are in groups, each with its own tests: those of the modules themselves,
fast and in virtual time. What only a far test would notice counts as unnoticed.

Two rules:

- Text for people is not mutated: log calls, and string literals with a space in them. A test that
  pins each word of a message finds no fault. Strings without a space (keys, states, units) are. Nor
  is what cannot make a difference: `strict=True` of a `zip`, and lines marked `pragma: no mutate`,
  each with its reason.
- Decided means killed or survived. A mutant that no test reaches has survived. One that runs into
  its time limit is undecided: mostly an endless loop, but a slow machine looks the same.

    python tests/support/mutants.py                              # all
    python tests/support/mutants.py 'spothop.policy.intervals*'  # by name
"""

# ruff: noqa: T201  a program: it prints its table

from __future__ import annotations

import argparse
import ast
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / ".mutants"
PACKAGES = ("client/spothop", "agent/spothop_agent", "master/spothop_master")
SUPPORT = ("tests", "migrations", "examples", "pyproject.toml")
LEAST = 90  # percent of the decided that are killed
LIMIT_S, LIMIT_FACTOR = 1.0, 15.0  # time limit: (1 s + what the tests take without a mutant) x 15


@dataclass(frozen=True)
class Group:
    """Modules, as paths below the packages, and the tests that must notice a change in them."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = {
    "policy": Group(
        modules=("spothop/policy/*",),
        tests=(
            "unit/test_policy_*.py",
            "unit/test_estimators.py",
            "unit/test_estimator_coverage.py",
        ),
    ),
    "checkpoints": Group(
        modules=("spothop/checkpoints/*",),
        tests=("unit/test_checkpoints_*.py",),
    ),
    "core": Group(
        modules=("spothop_master/core/*",),
        tests=("unit/test_core_*.py",),
    ),
    "agent": Group(
        modules=tuple(
            f"spothop_agent/{name}.py" for name in ("saves", "outbox", "notices", "notice_states")
        ),
        tests=(
            "unit/test_agent_saves*.py",
            "unit/test_agent_outbox.py",
            "unit/test_agent_notices*.py",
            "unit/test_agent_notice_states.py",
            "unit/test_agent_backups.py",
        ),
    ),
    "agents": Group(
        modules=("spothop_master/agents/*",),
        tests=(
            "unit/test_agents_*.py",
            "integration/test_supervise_flow.py",
            "integration/test_supervise_launches.py",
            "integration/test_supervise_stopping.py",
            "integration/test_insurance_flow.py",
        ),
    ),
}


# -- what mutmut is told ---------------------------------------------------------------------------


def is_text(node: Any) -> bool:
    """Is this text for people: a literal with a space in it, or a choice or sum of such?"""
    import libcst as cst

    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        return any(
            isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts
        )
    if isinstance(node, cst.ConcatenatedString):
        return is_text(node.left) or is_text(node.right)
    if isinstance(node, cst.IfExp):
        return is_text(node.body) and is_text(node.orelse)
    if isinstance(node, cst.BinaryOperation):
        return isinstance(node.operator, cst.Add) and (is_text(node.left) or is_text(node.right))
    return False


def is_log_call(node: Any) -> bool:
    import libcst as cst

    return (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and isinstance(node.func.value, cst.Name)
        and node.func.value.value in ("log", "_log")
    )


def is_check(argument: Any) -> bool:
    """`zip(..., strict=True)` is an assertion: with what it holds for, nothing can tell it away."""
    return argument.keyword is not None and argument.keyword.value == "strict"


def takes_only_text_away(node: Any, mutated: Any) -> bool:
    """Does the mutant differ only in an argument or a value that is text, or a check?"""
    import libcst as cst

    if isinstance(node, cst.Call) and isinstance(mutated, cst.Call):
        kept = {id(argument) for argument in mutated.args}
        gone = [argument for argument in node.args if id(argument) not in kept]
        return bool(gone) and all(is_text(gone_.value) or is_check(gone_) for gone_ in gone)
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return is_text(node.value)
    return False


def leave_text_alone() -> None:
    """mutmut can leave out lines and functions, but not a kind of expression: two of its questions
    get a second answer."""
    import libcst as cst
    from mutmut.mutation.file_mutation import MutationVisitor

    skip, removes = MutationVisitor._skip_node_and_children, MutationVisitor._removes_ignored_code

    def skip_text(self: Any, node: Any) -> bool:
        if is_text(node) or is_log_call(node):
            return True
        return (isinstance(node, cst.Arg) and is_check(node)) or skip(self, node)

    def removes_text(self: Any, node: Any, mutated: Any) -> bool:
        return takes_only_text_away(node, mutated) or removes(self, node, mutated)

    MutationVisitor._skip_node_and_children = skip_text  # type: ignore[method-assign]
    MutationVisitor._removes_ignored_code = removes_text  # type: ignore[method-assign]


def lay_out(folder: Path, group: Group, *, again: bool) -> None:
    """A copy to work in, as mutmut wants it: all packages in `src`. Without `again` results of
    before are gone; with it those of the killed stand, unless their file has changed."""
    before = folder.with_name(f"{folder.name}.before")
    shutil.rmtree(before, ignore_errors=True)
    if folder.exists():
        folder.rename(before)
    (folder / "src").mkdir(parents=True)
    unwanted = shutil.ignore_patterns("__pycache__")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "src" / Path(package).name, ignore=unwanted)
    if again and before.exists():
        (before / "mutants").rename(folder / "mutants")
        shutil.rmtree(folder / "mutants/tests")
        for meta in (folder / "mutants/src").rglob("*.meta"):
            forget(meta, before, folder)
    shutil.rmtree(before, ignore_errors=True)
    for name in SUPPORT:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=unwanted)
        else:
            shutil.copy(source, folder / name)
    tests = sorted(
        f"tests/{path.relative_to(ROOT / 'tests')}"
        for pattern in group.tests
        for path in (ROOT / "tests").glob(pattern)
    )
    options = {
        "source_paths": ["src"],
        "only_mutate": [f"src/{module}" for module in group.modules],
        "also_copy": [name for name in SUPPORT if name != "tests"],
        "pytest_add_cli_args": [
            *("-p", "no:xdist"), *("-p", "no:cacheprovider"), *("-o", "pythonpath=tests"),
            "--hypothesis-profile=mutants",
        ],
        "pytest_add_cli_args_test_selection": tests,
    }  # fmt: skip
    lines = ["[mutmut]", f"timeout_constant = {LIMIT_S}", f"timeout_multiplier = {LIMIT_FACTOR}"]
    lines += ["process_isolation = forkserver"]  # threads of a test that ran before survive no fork
    for option, values in options.items():
        lines += [f"{option} =", *(f"    {value}" for value in values)]
    (folder / "setup.cfg").write_text("\n".join(lines) + "\n")


def forget(meta: Path, before: Path, now: Path) -> None:
    """What was not killed is tried again, and so is all of a file that has changed: mutants are
    known by their numbers."""
    mutated = meta.with_suffix("")
    source = mutated.relative_to(now / "mutants")
    if (before / source).read_bytes() != (now / source).read_bytes():
        for path in (meta, mutated):
            path.unlink()
        return
    data = json.loads(meta.read_text())
    codes = data["exit_code_by_key"]
    data["exit_code_by_key"] = {
        name: code if code in KILLED else None for name, code in codes.items()
    }
    meta.write_text(json.dumps(data))


# -- what came out ---------------------------------------------------------------------------------


@dataclass
class Results:
    """Counts per module, and the survivors as (file:line, name, what was changed)."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    survivors: list[tuple[str, str, str]] = field(default_factory=list)


STATUS = {"killed": "killed", "survived": "survived", "no tests": "survived"}
KILLED = (1, 3)  # pytest's exit codes


def mutants_of(meta: Path) -> dict[str, int | None]:
    result: dict[str, int | None] = json.loads(meta.read_text())["exit_code_by_key"]
    return result


def function_line(source: Path, mutant: str) -> int:
    """Where the function that was mutated begins; mutmut says `x_name`, or x, class and
    name with a letter of its own between them."""
    mangled = mutant.rpartition(".")[-1].rpartition("__mutmut_")[0]
    parts = mangled.split("\u01c1")[1:] if "\u01c1" in mangled else [mangled.removeprefix("x_")]
    body: list[ast.stmt] = ast.parse(source.read_text()).body
    line = 1
    for part in parts:
        found = next(node for node in body if getattr(node, "name", None) == part)
        body, line = found.body, found.lineno  # type: ignore[attr-defined]
    return line


def describe(source: Path, mutant: str, diff: Iterable[str]) -> tuple[int, str]:
    """The line of the source that changed, and both versions of it."""
    old, new, at = [], [], 0
    number = 0
    for line in diff:
        if hunk := re.match(r"@@ -(\d+)", line):
            number = int(hunk[1])
        elif line.startswith(("---", "+++")):
            continue
        elif line.startswith("+"):
            new.append(line[1:].strip())
            at = at or number
        else:
            if line.startswith("-"):
                old.append(line[1:].strip())
                at = at or number
            number += 1
    return function_line(source, mutant) + at - 1, f"{' '.join(old)}  ->  {' '.join(new)}"


def collect(folder: Path, patterns: list[str]) -> Results:
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code

    results = Results()
    os.chdir(folder)
    for meta in sorted(Path("mutants/src").rglob("*.meta")):
        source = meta.relative_to("mutants").with_suffix("")
        module = ".".join(source.relative_to("src").with_suffix("").parts)
        for mutant, code in mutants_of(meta).items():
            if patterns and not any(fnmatch.fnmatch(mutant, pattern) for pattern in patterns):
                continue
            status = status_by_exit_code[code]
            counts = results.counts.setdefault(module, Counter())
            counts[STATUS.get(status, "undecided")] += 1
            if status != "killed":
                line, change = describe(
                    source, mutant, get_diff_for_mutant(mutant, path=source).split("\n")
                )
                results.survivors.append(
                    (f"{source.relative_to('src')}:{line}", f"{status}: {mutant}", change)
                )
    return results


def percent(counts: Counter[str]) -> float:
    decided = counts["killed"] + counts["survived"]
    return 100 * counts["killed"] / decided if decided else 100.0


def table(counts: dict[str, Counter[str]]) -> Iterator[str]:
    total: Counter[str] = sum(counts.values(), Counter())
    yield f"{'module':44} {'killed':>7} {'survived':>9} {'undecided':>10} {'share':>7}"
    for module, row in [*counts.items(), ("all", total)]:
        counted = f"{row['killed']:7} {row['survived']:9} {row['undecided']:10}"
        yield f"{module:44} {counted} {percent(row):6.1f}%"


# -- programs --------------------------------------------------------------------------------------


def run_group(folder: Path, patterns: list[str], children: int) -> None:
    """In a process of its own, in the group's folder: mutmut has one state a process."""
    os.chdir(folder)
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    leave_text_alone()
    from mutmut.__main__ import cli

    cli(["run", "--max-children", str(children), *patterns])


def wanted(group: Group, patterns: list[str]) -> bool:
    """May one of the patterns name a mutant in this group?"""
    names = [module.removesuffix(".py").rstrip("*").replace("/", ".") for module in group.modules]
    asked = [re.split(r"[*?\[]", pattern)[0] for pattern in patterns]
    return not patterns or any(a.startswith(b) or b.startswith(a) for a in asked for b in names)


def run_all(patterns: list[str], *, children: int, again: bool) -> Results:
    results = Results()
    for name, group in GROUPS.items():
        if not wanted(group, patterns):
            continue
        print(f"\n== {name}", flush=True)
        lay_out(WORK / name, group, again=again)
        command = [sys.executable, __file__, "--group", name, "--children", str(children)]
        command += [] if again else patterns  # what is named is always run
        environ = {**os.environ, "CI": "1"}  # noqa: TID251  the same examples for every mutant
        with open(WORK / f"{name}.log", "w") as log:  # a counter that moves, for terminals
            seen = None if sys.stdout.isatty() else log
            subprocess.run(command, check=True, env=environ, stdout=seen, stderr=seen)
        found = collect(WORK / name, patterns)
        results.counts |= found.counts
        results.survivors += found.survivors
    return results


def main() -> int:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    add = parser.add_argument
    add("patterns", nargs="*", help="names of mutants, * stands for anything")
    add("--children", type=int, default=os.cpu_count() or 2, help="how many at a time")
    add("--again", action="store_true", help="only what the last run did not kill")
    add("--json", type=Path, help="write the counts there")
    add("--group", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.group:
        run_group(WORK / args.group, args.patterns, args.children)
        return 0
    results = run_all(args.patterns, children=args.children, again=args.again)
    for place, name, change in results.survivors:
        print(f"{place}  {name}\n    {change}")
    print("", *table(results.counts), sep="\n")
    if args.json:
        counts = {module: dict(row) for module, row in results.counts.items()}
        args.json.write_text(json.dumps(counts, indent=2) + "\n")
    return 0 if percent(sum(results.counts.values(), Counter())) >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
