"""Calls the functions of a Flower app, as Flower would."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import WARNING

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from dapfl.engines.flower.own_app.plan import Plan
from dapfl.engines.flower.own_app.tuning import Tunables, Tuned
from dapfl.errors import ProtocolError
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
        app: Callable[[], ClientApp | None],
        plan: Plan,
        server_round: int,
    ) -> None:
        self._message, self._context, self._call_next = message, context, call_next
        self._app, self._plan, self._round = app, plan, server_round
        self.tunables: Tunables | None = None
        self.policy: HyperparameterPolicy | None = None

    def train(self, arrays: ArrayRecord, choice: Hyperparameters) -> RecordDict:
        """What the train function makes of a model."""
        if isinstance(self.policy, Tuned) and self.policy.by_time_alone:
            log(WARNING, "Dap-FL: tuning by time alone: %s", _BY_TIME)
        values = self.tunables.chosen(choice) if self.tunables else {}
        config = ConfigRecord({**self._plan.train_config, "server-round": self._round, **values})
        content = RecordDict({self._plan.arrays_key: arrays, self._plan.config_key: config})
        before, self._message.content = self._message.content, content
        try:
            with _changed(self._context, values):
                return self._result("train", self._call_next(self._message, self._context))
        except ProtocolError:
            raise
        except Exception as error:
            raise self._failed("train", error) from error
        finally:
            self._message.content = before

    def evaluate(self, arrays: ArrayRecord) -> RecordDict:
        """What the evaluate function says of a model."""
        app = self._app()
        assert app is not None, "only an app with an evaluate function is asked to evaluate"
        config = ConfigRecord({"server-round": self._round})
        content = RecordDict({self._plan.arrays_key: arrays, self._plan.config_key: config})
        message = Message(content, self._context.node_id, MessageType.EVALUATE)
        try:
            return self._result("evaluate", app(message, self._context))
        except ProtocolError:
            raise
        except Exception as error:
            raise self._failed("evaluate", error) from error

    def _result(self, name: str, reply: Message) -> RecordDict:
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


@contextmanager
def _changed(context: Context, values: dict[str, float | int]) -> Iterator[None]:
    """The app's run config with these values, where it has them, for one call."""
    before = {name: context.run_config[name] for name in values if name in context.run_config}
    context.run_config.update({name: values[name] for name in before})
    try:
        yield
    finally:
        context.run_config.update(before)
