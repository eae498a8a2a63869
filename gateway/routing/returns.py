"""Sessions that return: Talaria Algorithm 1, lines 1 to 9, and the completion hook of 4.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from alipes.gateway.routing.admission import is_full, misfit
from alipes.gateway.routing.appraisal import Appraiser
from alipes.gateway.routing.checks import Check, HealthChecks
from alipes.gateway.routing.decision import CallShape, Completion, RouterSettings, Why
from alipes.gateway.routing.instances import SECOND, InstanceState
from alipes.gateway.routing.leases import Lease, LeaseTable
from alipes.instance.contract import BEAT_SECONDS, Pool

LATEST_BEAT: Final = int(1.5 * BEAT_SECONDS * SECOND)
"""An instance that was heard of within so many nanoseconds has missed no beat."""


class Returns:
    """Holds places for sessions whose call has finished, and gives them to the next one. ``checks``
    has the calls that wait until the instance has shown that it lives."""

    def __init__(self, settings: RouterSettings, leases: LeaseTable, appraiser: Appraiser) -> None:
        self.checks = HealthChecks(int(settings.check_seconds * SECOND))
        self._settings = settings
        self._leases = leases
        self._appraiser = appraiser

    def configure(self, settings: RouterSettings) -> None:
        """Leases and checks last as long as the new settings say, those that are live too."""
        before, self._settings = self._lasting, settings
        self.checks.configure(int(settings.check_seconds * SECOND))
        self._leases.shift(self._lasting - before)

    @property
    def _lasting(self) -> int:
        return int(self._settings.lease_seconds * SECOND)

    def take(
        self, call: CallShape, instances: Mapping[str, InstanceState], now: int
    ) -> InstanceState | Check | None:
        """End the live lease of the branch that calls: consumed when it is good for something,
        and then the instance that it holds a place on wins, else discarded. With an old state or
        missed beats of that instance it waits for the answer to a check. On a hot instance a
        lease charges load and no more, and has done so when the call arrives."""
        lease = self._leases.of(call.branch, now)
        if lease is None:
            return None
        instance = instances[lease.instance]
        if not self._good(lease, call, instance):
            self._leases.discard(call.branch)
            return None
        hot = instance.hello is not None and instance.hello.pool is Pool.HOT
        if not hot and not self._alive(instance, now):
            check = Check(call, self._leases.take(call.branch), now)
            self.checks.add(check)
            return check
        self._leases.consume(call.branch)
        return None if hot else instance

    def checked(
        self, instances: Mapping[str, InstanceState], now: int
    ) -> Iterator[tuple[CallShape, InstanceState | None]]:
        """The calls whose check is over, with the instance that they return to, or None where the
        lease is discarded; one by one, as each may take the last place. An
        instance whose check failed is not asked again before something is heard of it."""
        for check in tuple(self.checks):
            call, instance = check.call, instances[check.lease.instance]
            alive = instance.heard_since(check.asked)
            if not alive and self.checks.over(check, now):
                instance.unwell()
            if instance.healthy and not alive:
                continue
            self.checks.remove(call.call_id)
            good = self._good(check.lease, call, instance)
            self._leases.settle(good)
            yield call, instance if good else None

    def given_up(self, call_id: bytes) -> None:
        """The call waits no longer, if it did."""
        if self.checks.remove(call_id) is not None:
            self._leases.settle(False)

    def finished(
        self, call: CallShape, instance: InstanceState, completion: Completion, now: int
    ) -> None:
        """Hold a place for the branch's next call, where its prefix is; none without a prefix to
        come back to, nor where none is expected or no call may go."""
        if call.final or not call.branch or not completion.prefix or not self._lasting:
            return
        if instance.hello is None or not instance.up or instance.drains:
            return
        self._leases.install(
            Lease(
                branch=call.branch,
                model=call.model,
                instance=instance.name,
                incarnation=instance.hello.incarnation,
                prefix=completion.prefix,
                prefix_tokens=completion.prefix_tokens,
                expires=now + self._lasting,
                charge=self._appraiser.admission_unit(call.model),
            )
        )

    def _alive(self, instance: InstanceState, now: int) -> bool:
        """Nothing puts in doubt that the instance would serve a call."""
        well = instance.condition(self._settings, now) is Why.OK
        return well or instance.heard_since(now - LATEST_BEAT)

    def _good(self, lease: Lease, call: CallShape, instance: InstanceState) -> bool:
        """The instance is healthy, the same process as then, can hold the call and would take it,
        and has on the device or the host all blocks that the prompt shares with the lease's
        prefix."""
        hello, report = instance.hello, instance.reports.get(call.model)
        if hello is None or report is None or not instance.healthy or instance.snapshot is None:
            return False
        if (lease.model, lease.incarnation) != (call.model, hello.incarnation):
            return False
        size = hello.block_tokens
        if misfit(report, size, call.prompt_tokens, call.max_tokens):
            return False
        if is_full(hello, instance.loads()):
            return False
        shared = shared_tokens(lease, call, report.kv_format, size)
        return 0 < shared <= self._appraiser.locality(call, instance).present


def shared_tokens(lease: Lease, call: CallShape, kv_format: str, block_tokens: int) -> int:
    """Tokens of whole blocks that the new prompt has in common with the lease's prefix: all of
    it where the prompt goes on from there; else, as where the client's template or tokenizer
    changed the reply, what of the prompt the branch had before. A prompt's last token is computed
    in any case. 0 without a path: nothing can be proven then."""
    if call.path is None:
        return 0
    keys, last = call.path.keys(kv_format), lease.prefix_tokens // block_tokens - 1
    extends = 0 <= last < len(keys) and keys[last] == lease.prefix
    common = lease.prefix_tokens if extends else min(call.known_tokens, lease.prefix_tokens)
    return max(0, min(common, call.prompt_tokens - 1)) // block_tokens * block_tokens
