"""What a model's work costs here: priors first, then fitted online to measured durations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from alipes.instance.contract import Estimate, ModelReport
from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler.fits import LinearFit
from alipes.instance.scheduler.switching import SwitchCosts


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rough rates from which priors are made: bytes a second read by a decode step, operations a
    second in a prefill, bytes a second copied by a switch."""

    memory: float
    compute: float
    copy: float


RATES: Final = {
    "cpu": DeviceRates(memory=8e9, compute=1e11, copy=3e9),
    "cuda": DeviceRates(memory=2e12, compute=2e14, copy=2e10),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """Measured of one model: a switch to it; in seconds, ``prefills`` as (tokens, seconds) of whole
    prompts, one decode iteration of one call with ``context`` tokens, and ``restores`` as (tokens,
    seconds)."""

    model: str
    switch: SwitchReport
    prefills: tuple[tuple[int, float], ...]
    context: int
    decode: float
    restores: tuple[tuple[int, float], ...]


@dataclass(slots=True)
class CostProfile:
    """The measured costs of one model, in seconds; see ``contract.Estimate`` for the forms."""

    prefill: LinearFit
    decode: LinearFit
    restore: LinearFit
    switch: SwitchCosts

    @classmethod
    def prior(cls, report: ModelReport, device: str, block_tokens: int) -> CostProfile:
        rates = RATES.get(device.partition(":")[0], RATES["cpu"])
        step = report.weight_bytes / rates.memory
        token = report.weight_bytes / rates.compute
        context = token / max(report.context, 1)
        return cls(
            prefill=LinearFit((step, token, context), (1.0, 512.0, 512.0 * 512.0)),
            decode=LinearFit((step, token, context / 8), (1.0, 8.0, 8192.0)),
            restore=LinearFit((0.0, report.block_bytes / block_tokens / rates.copy), (1.0, 512.0)),
            switch=SwitchCosts(report.weight_bytes, rates.copy),
        )

    def learn(self, trial: Trial) -> None:
        self.switch.observe(trial.switch)
        for tokens, seconds in trial.prefills:
            self.prefill.observe((1.0, tokens, tokens * tokens), seconds)
        self.decode.observe((1.0, 1.0, trial.context), trial.decode)
        for tokens, seconds in trial.restores:
            self.restore.observe((1.0, tokens), seconds)

    @property
    def activation(self) -> float:
        """Saving the calls of the model that leaves, making this one active and bringing its saved
        calls back."""
        return self.switch.seconds

    def prefill_seconds(self, runs: float, tokens: int, token_positions: float) -> float:
        base, token, context = self.prefill.coefficients
        return runs * base + tokens * token + token_positions * context

    def decode_seconds(self, calls: int, context: int) -> float:
        base, call, position = self.decode.coefficients
        return base + calls * call + context * position

    def restore_seconds(self, restores: float, tokens: int) -> float:
        """Copying ``tokens`` from the host in so many goes; nothing for none."""
        base, token = self.restore.coefficients
        return restores * base + tokens * token

    def estimate(self) -> Estimate:
        prefill, decode = self.prefill.coefficients, self.decode.coefficients
        restore = self.restore.coefficients
        return Estimate(
            prefill_base=prefill[0],
            prefill_token=prefill[1],
            prefill_context=prefill[2],
            decode_base=decode[0],
            decode_call=decode[1],
            decode_context=decode[2],
            switch=self.activation,
            restore_base=restore[0],
            restore_token=restore[1],
            samples=self.prefill.samples + self.decode.samples + self.switch.samples,
        )
