"""All checks in the order in which a worker depends on them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec

from edgespec.core.errors import AddressError, EdgespecError
from edgespec.core.protocol.names import key_id
from edgespec.llamacpp.step_time import step_curve
from edgespec.shared import control_client as control
from edgespec.shared import folders
from edgespec.shared.address import Address
from edgespec.shared.keystore import KeyStore
from edgespec.shared.known_answer import require_known_answer
from edgespec.shared.models import resolve_model
from edgespec.shared.paired import PairedGateway, PairedGateways
from edgespec.worker.addresses import GatewayAddresses
from edgespec.worker.config import WorkerSettings
from edgespec.worker.discovery import Browser
from edgespec.worker.doctor import findings, network
from edgespec.worker.doctor.findings import Finding
from edgespec.worker.models import identity, load_drafter, load_translation
from edgespec.worker.service import paired_gateway


def fault(check: str, error: EdgespecError) -> Finding:
    return Finding(check, str(error), findings.DO.get(error.exit_code, ""), error.exit_code)


def exit_code(found: Sequence[Finding]) -> int:
    """That of the first fault; 0 if there is none."""
    return next((one.exit_code for one in found if one.exit_code), 0)


async def examine(configured: Callable[[], WorkerSettings]) -> AsyncIterator[Finding]:
    """Each finding as it is made. A fault on which the later checks depend ends the examination.

    `configured` may raise ConfigError.
    """
    try:
        settings = configured()
        store = KeyStore(folders.state_dir("worker", settings.daemon.state_dir))
        gateways = PairedGateways(store.folder)
        gateway = paired_gateway(gateways)
        identity = store.identity()
    except EdgespecError as error:
        yield fault("setup", error)
        return
    yield Finding("setup", f"paired with {gateway.name}; this worker's id is {key_id(identity.public)}")
    yield findings.clock(time.time(), gateway.paired_at)
    status = await _running(settings)
    if status is not None:
        if status.get("state") == "starting":
            yield Finding("worker", f"it is starting: {status['doing']}", "wait until it is ready", findings.ASIDE)
            return
        for check in (findings.linked, findings.paused, findings.assigned, findings.matched, findings.logged):
            yield check(status)
        step_ms = status["step_ms"]
        yield findings.speed(step_ms / 1e3 if step_ms is not None else None, status["drafting_s"])
    where = await GatewayAddresses(gateways, gateway.key, settings.gateway.address, None).now()
    reached: list[Address] = []
    for one in where:
        finding = await network.address(one, gateway.pin)
        if not finding.exit_code:
            reached.append(one)
        yield finding
    if settings.gateway.discover:
        browser = Browser(wanted=key_id(gateway.key), networks=settings.gateway.networks)
        yield await network.multicast(browser, needed=not reached)
    elif not where:
        yield Finding("address", "no address is set, and mDNS is off", "set `gateway.address` in worker.toml", 78)
    if status is None:
        async for finding in _not_running(settings, gateway, store, reached):
            yield finding


async def _running(settings: WorkerSettings) -> Mapping[str, Any] | None:
    """The status of the worker that runs on this state; None: none does."""
    socket = folders.find_socket("worker", settings.daemon.state_dir)
    try:
        status: Mapping[str, Any] = await asyncio.to_thread(control.call, socket, "status", timeout_s=5.0)
    except AddressError:
        return None
    return status


async def _not_running(
    settings: WorkerSettings, gateway: PairedGateway, store: KeyStore, reached: Sequence[Address]
) -> AsyncIterator[Finding]:
    """What a running worker would have reported: its model, its speed, the gateway's judgement."""
    yield Finding("worker", "it does not run", "`edgespec run`, or `systemctl start edgespec`", findings.ASIDE)
    try:
        one_leaf = msgspec.structs.replace(settings, draft=msgspec.structs.replace(settings.draft, sequences=1))
        require_known_answer(resolve_model(settings.draft.model), settings.draft.n_gpu_layers, again=True)
        drafter = load_drafter(one_leaf)
        translation = load_translation(settings, drafter)
    except EdgespecError as error:
        yield fault("model", error)
        return
    yield Finding("model", f"loaded, {drafter.vocab_size} tokens of vocabulary")
    yield findings.speed(step_curve(drafter)[1])
    if reached:
        me = identity(settings, store, drafter, translation, 1)
        yield await network.handshake(me, gateway.pin, reached)
