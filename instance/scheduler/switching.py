"""What making a model active will take, by how much of its weights the device is going to hold
(Talaria 4.4)."""

from __future__ import annotations

from typing import Final

from alipes.instance.engine.protocol import SwitchReport
from alipes.instance.scheduler.fits import LinearFit, Smoothed


class SwitchCosts:
    """Of one model with ``weight_bytes``. Its weights take a fixed time, in which what the device
    holds already comes to its place, and so much more for each byte that comes from the host.
    Around that, calls are saved, planned and brought back."""

    def __init__(self, weight_bytes: int, host_rate: float) -> None:
        """``host_rate``, in bytes a second, is rough: measurements replace it."""
        self._weights: Final = weight_bytes
        self._fit = LinearFit((0.0, 1.0 / host_rate), (1.0, max(weight_bytes, 1)))
        self._around = Smoothed(0.0)
        # The part of the weights that was on the device, switch by switch.
        self._usual = Smoothed(0.0)
        self._at_hand: int | None = None
        self._room = 0

    @property
    def samples(self) -> int:
        return self._fit.samples

    def observe(self, report: SwitchReport) -> None:
        """The model was made active."""
        moved = report.on_device_bytes + report.h2d_bytes
        if moved:
            # Else the engine had it active already, as after its calibration.
            self._fit.observe((1.0, report.h2d_bytes), report.seconds)
            self._usual.observe(report.on_device_bytes / moved)

    def turned(self, seconds: float) -> None:
        """So much went by around that, between the last iteration before and the first after."""
        self._around.observe(seconds)

    def staged(self, at_hand: int | None, room: int = 0) -> None:
        """So many bytes of the weights are on the device now, and ``room`` more may come to be;
        None of the model that is active, of which nothing can be said."""
        self._at_hand, self._room = at_hand, room

    @property
    def covered(self) -> float:
        """Bytes that the next switch is likely to find on the device: as many as usual, no fewer
        than are there now, and no more than there is room for."""
        usual = self._usual.value * self._weights
        if self._at_hand is None:
            return usual
        return min(max(usual, self._at_hand), self._at_hand + self._room)

    @property
    def weights_seconds(self) -> float:
        """What the weights will take, the next time."""
        fixed, byte = self._fit.coefficients
        return fixed + (self._weights - self.covered) * byte

    @property
    def seconds(self) -> float:
        """What the next switch will take in all."""
        return self.weights_seconds + self._around.value

    @property
    def byte_seconds(self) -> float:
        """What one byte on the device saves."""
        return self._fit.coefficients[1]
