"""The learning-rate finder: which η suits this model and these data, found by short trials on the client.

The best η depends on the scale of inputs and weights, on the depth of a network and on its normalisation.
A `RateUnit` turns it into a number without a scale: the rate that a client found by trying. Policies choose
multiples of it; `Probe` is the finder alone, without an agent.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import msgspec

from dapfl.config import PolicyConfig
from dapfl.errors import PolicyError
from dapfl.tuning.policy import BARELY, AgentRecord, Choice, Fixed, Outcome, Situation, decide

Trial = Callable[[float], float]
"""Trains one epoch at a rate η from W(t), and gives the loss on D_i afterwards."""

FIRST = 0.3  # the rate tried first
STEP = math.sqrt(10)  # between neighbouring rates
LOWEST, HIGHEST = 1e-9, 1e3
MOST_TRIALS = 6
SHARE = 0.5  # of the affordable epochs that trials may take in one round: the rest is for training
RECOVERY = 1.1  # what the unit grows by in a round that did not overshoot, up to where it was found
TOLERANCE = 1.05  # times a loss: a little more is no more than noise
NOISY = 2.0  # times the loss before training: what may be noise of the last steps
FAR = 1.0  # times the length of W(t): a network that has moved farther,
HARDLY = 0.9  # and whose loss is more than this part of that of guessing, is dead
NOISE = 0.01  # of a gain: a rate that gains this much less than nothing may still be the right one
STALL_ROUNDS = 5  # without progress, and the unit is looked for again
STALL = 0.002  # the progress of a round, in e-folds of the loss, that is none
BACKOFF = 0.5  # what the rate of a `Probe` shrinks by when training overshot
TURNING, STRAIGHT = 0.0, 0.6  # alignments below which the shared unit falls, and above which it rises
FAST = 0.03  # e-folds of the loss in a round, from which on it rises as fast as it may
LEAST, MOST = 0.4, 2.0  # times the unit of the round before
SETTLED = 0.6  # of a run, after which the unit rises no more


class Search(msgspec.Struct):
    """A search for the rate that suits, by climbing from `start` in steps of √10 to the largest gain.

    `gains` is what the trials gave: ln(loss before / after one epoch), for each rate by its number of steps
    from `start`. A search may go on in a later round: the gains of earlier ones still tell where to look.

    It climbs from neighbour to neighbour, and never leaps: on a plateau the noise of a far rate may look like
    a gain. Where nothing gains, it goes down.
    """

    start: float = FIRST
    highest: float = HIGHEST
    gains: dict[int, float] = {}
    promising: bool = False  # whether any rate has led below the loss of guessing

    def rate(self, rung: int) -> float:
        """The rate that is so many steps from the start."""
        return self.start * STEP**rung

    @property
    def best(self) -> int:
        """The rung with the largest gain; of equal ones, the lowest."""
        return max(self.gains, key=lambda rung: (self.gains[rung], -rung))

    @property
    def next(self) -> int | None:
        """The rung to try next; None at the end of the search."""
        if not self.gains:
            return 0
        sides = (1, -1) if self.gains[self.best] > -NOISE else (-1, 1)
        near = [self.best + side for side in sides]
        left = [rung for rung in near if rung not in self.gains and LOWEST <= self.rate(rung) <= self.highest]
        return left[0] if left and len(self.gains) < MOST_TRIALS else None

    @property
    def found(self) -> float:
        """The rate that suits, as far as it is known: a step below the one that gains most in an epoch.

        Training goes on for several epochs, and the mean of all clients bears less than each of them alone.
        """
        return self.rate(self.best - 1) if self.promising else self.start

    def go_on(self, trial: Trial, loss: float, most: int, guess: float | None = None) -> int:
        """Tries rates, `most` at most; gives their number.

        Where no rate leads below `guess`, the loss of the best constant guess, gains are those of output
        biases alone and say nothing: then the rate stays where it was.

        >>> search = Search()
        >>> search.go_on(lambda rate: 1 + abs(math.log10(rate) + 2), loss=3.0, most=9), search.next
        (6, None)
        >>> round(search.found, 3)
        0.003
        """
        trials = 0
        while trials < most and (rung := self.next) is not None:
            after = trial(self.rate(rung))
            known = 0 < after < math.inf and 0 < loss < math.inf
            self.promising |= guess is None or after < BARELY * guess
            self.gains[rung] = math.log(loss / after) if known else -math.inf if after else math.inf
            trials += 1
        return trials


class RateUnit(msgspec.Struct):
    """A client's unit of η: found by trials, halved by training that overshot, found again in a stall."""

    unit: float = FIRST
    search: Search = msgspec.field(default_factory=Search)
    stalled: int = 0  # rounds without progress
    last_loss: float = math.inf
    trial_loss: float = math.inf  # the lowest loss of this round's trials at the unit and below

    def prepare(self, situation: Situation, trial: Trial) -> int:
        """Looks for the unit if it must; gives the number of epochs that this took.

        A client that can afford few epochs tries few rates, and goes on in the next round, unless clients
        share their units.
        """
        self.trial_loss = math.inf
        if situation.shared_unit is not None:
            # What became of all clients' steps together tells more than trials on the data of one of them.
            factor = correction(situation, self.last_loss)
            self.last_loss = situation.loss
            self.unit = min(max(factor * situation.shared_unit, LOWEST), self.most)
            return 0
        self._notice_stall(situation.loss)
        if not math.isfinite(situation.loss):
            return 0  # trials tell nothing where losses are not known

        if situation.one_sided:
            # Where most labels are the same, a larger rate always gains: only smaller ones tell something.
            self.search.highest = self.search.start

        losses: dict[float, float] = {}

        def noted(rate: float) -> float:
            losses[rate] = trial(rate)
            return losses[rate]

        most = min(MOST_TRIALS, int(SHARE * situation.affordable))
        trials = self.search.go_on(noted, situation.loss, most, situation.plateau_loss)
        if trials:
            self.unit = self.search.found
            # What larger rates have reached says nothing of steps that are too large.
            reached = [loss for rate, loss in losses.items() if rate <= self.unit and loss >= 0]
            self.trial_loss = min(reached, default=math.inf)
        return trials

    @property
    def most(self) -> float:
        """What a shared unit may grow to: the rate that won the search, if that has ended.

        No training is shorter than a trial, and so none bears larger steps.
        """
        ended = self.search.promising and self.search.next is None
        return self.search.rate(self.search.best) if ended else HIGHEST

    def _notice_stall(self, loss: float) -> None:
        known = 0 < loss < math.inf and 0 < self.last_loss < math.inf
        gain = math.log(self.last_loss / loss) if known else math.inf
        self.last_loss = loss
        self.stalled = self.stalled + 1 if gain < STALL else 0
        if self.stalled >= STALL_ROUNDS:
            self.search, self.stalled = Search(start=self.unit), 0

    def observe(self, situation: Situation, outcome: Outcome, backoff: float) -> None:
        """Training that overshot makes the unit smaller; good rounds raise it again."""
        if self.overshot(situation, outcome):
            self.unit = max(backoff * self.unit, LOWEST)
        else:
            self.unit = min(RECOVERY * self.unit, max(self.search.found, self.unit))

    def overshot(self, situation: Situation, outcome: Outcome) -> bool:
        """Whether training left its own loss much higher than it found it: its steps were too large.

        Up to twice as high does not count, unless it is worse than guessing: W(t), a mean of many models, has
        less noise than the last steps of one client, and so will the next mean. Training that ends as far
        above what one epoch of a trial reached in the same round overshot as well. It may even have killed a
        network, whose loss is then that of guessing, and no higher than it was before the first round; but
        its weights are far away. On a plateau, which must not be mistaken for that, they hardly move.
        """
        if outcome.loss_after is None:
            return False
        guess = situation.plateau_loss
        if guess is not None and not outcome.loss_after < HARDLY * guess and (outcome.moved or 0) > FAR:
            return True
        most = NOISY * min(situation.loss, self.trial_loss)
        if guess is not None:
            most = min(most, TOLERANCE * max(situation.loss, guess))
        return not outcome.loss_after <= most


def correction(situation: Situation, last_loss: float) -> float:
    """What the last rounds say of the unit that all clients had.

    Trials are short-sighted: a client sees neither what the mean of all does with its step, nor more than one
    epoch ahead. If the model goes on in the same direction and gets better fast, larger steps would have
    done; if it turns back and does not get better fast, or is clearly worse on the client's data than before,
    they were too large.
    """
    alignment, loss = situation.alignment, situation.loss
    if not loss <= TOLERANCE * last_loss:
        return LEAST
    if alignment is None:
        return 1.0
    fast = min(1.0, math.log(last_loss / loss) / FAST) if 0 < loss < last_loss else 0.0
    if alignment < TURNING:
        return math.pow(LEAST, (1 - fast) * min(1.0, 2 * (TURNING - alignment)))
    if alignment > STRAIGHT and situation.round <= SETTLED * situation.rounds:
        return math.pow(MOST, fast * (alignment - STRAIGHT) / (1 - STRAIGHT))
    return 1.0


class Probe(Fixed):
    """η as the finder gives it, times the pinned η of its action space (1); α pinned."""

    needs_local_loss = True
    tries_rates = True

    def __init__(self, config: PolicyConfig, seed: int = 0, client: int = 1) -> None:
        super().__init__(config, seed, client)
        self.unit = RateUnit()
        self._situation: Situation | None = None

    def prepare(self, situation: Situation, trial: Trial) -> int:
        """Look for the rate where it is not known, or training has stalled."""
        return self.unit.prepare(situation, trial)

    def choose(self, situation: Situation) -> Choice:
        """The rate found."""
        self._situation = situation
        return decide(replace(self.plan, eta=self.plan.eta * self.unit.unit), situation, self.config.capped)

    def observe(self, outcome: Outcome) -> None:
        """A rate that overshot shrinks."""
        if self._situation is None:
            raise PolicyError("A policy observes the outcome of a choice, and none has been made yet.")
        self.unit.observe(self._situation, outcome, BACKOFF)

    @property
    def record(self) -> AgentRecord:
        """The rate found."""
        return AgentRecord(unit=self.unit.unit)

    def saved_state(self) -> bytes:
        """The rate, and what is known about it."""
        return msgspec.msgpack.encode(self.unit)

    def restore(self, state: bytes) -> None:
        """Go on from what `saved_state` gave."""
        try:
            self.unit = msgspec.msgpack.decode(state, type=RateUnit)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise PolicyError(f"This is not the state of a learning-rate finder: {error}.") from None
