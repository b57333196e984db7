"""Calls the functions of a Flower app, as Flower would."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from logging import WARNING
from types import FrameType

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from dapfl.engines.flower.own_app.plan import Plan
from dapfl.engines.flower.own_app.tuning import Tunables, Tuned
from dapfl.errors import ProtocolError
from dapfl.federation.training import LocalTraining
from dapfl.hyperparameters import Hyperparameters
from dapfl.tuning.policy import HyperparameterPolicy

_BY_TIME = (
    "the app reports no loss, or its configuration has no learning rate and epochs to choose. Return a "
    "metric with 'loss' in its name, and give 'lr' and 'local-epochs' in train_config or in pyproject.toml."
)


class AppFunctions:
    """Calls the app's own functions, as Flower would."""

    def __init__(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        app: ClientApp | None,
        plan: Plan,
        server_round: int,
    ) -> None:
        self._message, self._context, self._call_next = message, context, call_next
        self._app, self._plan, self._round = app, plan, server_round
        self.tunables: Tunables | None = None
        self.policy: HyperparameterPolicy | None = None
        self.training: LocalTraining | None = None

    @property
    def can_evaluate(self) -> bool:
        """Whether the app has an evaluate function."""
        return self._app is not None and "evaluate.default" in self._app._registered_funcs

    def train(self, arrays: ArrayRecord, choice: Hyperparameters) -> RecordDict:
        """What the train function makes of a model."""
        if isinstance(self.policy, Tuned) and self.policy.by_time_alone:
            log(WARNING, "Dap-FL: tuning by time alone: %s", _BY_TIME)
        values = self.tunables.chosen(choice) if self.tunables else {}
        config = ConfigRecord({**self._plan.train_config, "server-round": self._round, **values})
        with _changed(self._context, values):
            return self._call("train", arrays, config, self._call_next)

    def evaluate(self, arrays: ArrayRecord) -> RecordDict:
        """What the evaluate function says of a model."""
        assert self._app is not None, "only an app with an evaluate function is asked to evaluate"
        kind = self._message.metadata.message_type
        self._message.metadata.message_type = MessageType.EVALUATE
        try:
            return self._call("evaluate", arrays, ConfigRecord({"server-round": self._round}), self._app)
        finally:
            self._message.metadata.message_type = kind

    def _call(
        self, name: str, arrays: ArrayRecord, config: ConfigRecord, function: ClientAppCallable
    ) -> RecordDict:
        """What a function of the app makes of the server's message with other content.

        A message of our own would not do: in a simulation Flower tells a node nothing to make one with.
        """
        content = RecordDict({self._plan.arrays_key: arrays, self._plan.config_key: config})
        before, self._message.content = self._message.content, content
        try:
            reply = function(self._message, self._context)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._failed(name, error) from error
        finally:
            self._message.content = before
        if not reply.has_content():
            raise self._failed(name, None)
        return reply.content

    def _failed(self, name: str, error: Exception | None) -> ProtocolError:
        if error is not None:
            traceback.print_exception(error)  # to the node's log, which stays on this machine
        return ProtocolError(
            f"{name}-failed",
            f"the app's own {name} function failed; it was given the federation's model: "
            + ", ".join(f"{spec.name} {list(spec.shape)}" for spec in self._plan.model.specs[:8]),
        )


def calling_app() -> ClientApp | None:
    """The app that is answering a message, from inside one of its mods.

    Flower gives a mod the function that a message is for and no other. Nor does the mod know its app: a
    simulation copies both. But the app is there, on the stack.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not ClientApp.__call__.__code__:
        frame = frame.f_back
    return frame.f_locals["self"] if frame is not None else None


@contextmanager
def _changed(context: Context, values: dict[str, float | int]) -> Iterator[None]:
    """The app's run config with these values, where it has them, for one call."""
    before = {name: context.run_config[name] for name in values if name in context.run_config}
    context.run_config.update({name: values[name] for name in before})
    try:
        yield
    finally:
        context.run_config.update(before)
