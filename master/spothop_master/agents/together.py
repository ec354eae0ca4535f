"""Questions that wait at the same time, answered together by one thread.

Reading rows for fifty VMs in one query costs little more than for one; a query for each of them,
when a thousand ask at once after a start, keeps the last of them waiting for seconds. So whoever
asks leaves the question here. A thread takes all that wait, answers them in one go, and looks
again; a question that is alone waits for nobody. After several it rests for `rest_s`: where so many
come, the next ones are worth a moment's wait.

One question that cannot be answered hurts nobody else: where answering all of them fails, each is
asked by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

MOST = 200
"""Questions that are answered in one go: the first of them waits for the last."""
REST_S = 0.02

Q = TypeVar("Q")
A = TypeVar("A")


class Together(Generic[Q, A]):
    """`answer` gives the answer to each of some questions, in a thread named `name`; those that it
    leaves out have the answer None."""

    def __init__(
        self,
        name: str,
        answer: Callable[[Sequence[Q]], Mapping[Q, A]],
        *,
        rest_s: float = REST_S,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._answer = answer
        self._rest_s = rest_s
        self._sleep = sleep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: list[_Asked[Q, A]] = []
        self._busy = False

    def ask(self, question: Q) -> Future[A | None]:
        """Raises, as its result, what `answer` raises."""
        asked: _Asked[Q, A] = _Asked(question)
        with self._lock:
            self._waiting.append(asked)
            begin, self._busy = not self._busy, True
        if begin:
            try:
                self._thread.submit(self._work)
            except RuntimeError:  # no new thread: whoever asks does it, for others wait for it, too
                self._work()
        return asked.answer

    def close(self) -> None:
        """What waits is answered first."""
        self._thread.shutdown(wait=True)

    def _work(self) -> None:
        while batch := self._next():
            # who has given up is not told
            self._tell([each for each in batch if each.answer.set_running_or_notify_cancel()])
            if len(batch) > 1:
                self._sleep(self._rest_s)

    def _next(self) -> list[_Asked[Q, A]]:
        with self._lock:
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            self._busy = bool(batch)
        return batch

    def _tell(self, batch: Sequence[_Asked[Q, A]]) -> None:
        try:
            answers = self._answer([*dict.fromkeys(each.question for each in batch)])
        except Exception as error:  # whatever it is, those who wait must not wait for ever
            if len(batch) > 1:
                for each in batch:
                    self._tell([each])
            else:
                batch[0].answer.set_exception(error)
            return
        for each in batch:
            each.answer.set_result(answers.get(each.question))


@dataclass(frozen=True)
class _Asked(Generic[Q, A]):
    question: Q
    answer: Future[A | None] = field(default_factory=Future)
