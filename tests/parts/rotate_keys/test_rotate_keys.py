"""Both verbs that rotate keys: statements that the other side follows, and keys that are not replaced."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cryptography import x509

from cloud_gateway.__main__ import main as gateway_main
from cloud_gateway.auth import KeyRing
from cloud_gateway.links.paired import PairedWorkers
from cloud_gateway.part import Foundation, LinkIdentity
from cloud_gateway.parts.rotate_keys import PART as GATEWAY_PART
from cloud_gateway.parts.rotate_keys.identity import rotate_gateway
from cloud_gateway.process.config import GatewaySettings
from edgespec.__main__ import main as worker_main
from edgespec.core.errors import ConfigError, KeyStoreError, RemoteProtocolError
from edgespec.core.protocol.handshake import MAX_ROTATIONS, Pin, check_succession, successor
from edgespec.core.protocol.names import key_id
from edgespec.parts.rotate_keys import PART as WORKER_PART
from edgespec.parts.rotate_keys.credentials import FILE, note_credentials
from edgespec.parts.rotate_keys.identity import rotate_identity
from edgespec.shared.guards import Guards
from edgespec.shared.keystore import KeyStore
from edgespec.shared.nearby import ALONE
from edgespec.shared.server_keys import ServerKeyStore
from edgespec.shared.tls import rotations_in
from edgespec.worker.config import WorkerSettings
from edgespec.worker.part import WorkerProcess


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without configuration, state or credentials."""
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    for variable in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_statements_of_many_rotations_lead_to_the_present_key(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    for _ in range(MAX_ROTATIONS + 1):
        made = rotate_identity(store)
    assert len(store.rotations()) == MAX_ROTATIONS and store.rotations()[-1] == made
    check_succession(store.rotations(), store.identity().public)


def test_a_worker_that_missed_four_rotations_of_the_gateway_follows(tmp_path: Path) -> None:
    store = ServerKeyStore(tmp_path)
    store.tls_identity()
    pins = [Pin(store.identity().public, store.tls_identity().spki_hash, 1000.0)]
    for _ in range(MAX_ROTATIONS + 1):
        new = rotate_gateway(store).new_key
        pins.append(Pin(new, store.tls_identity().spki_hash, 1000.0))
    shown = rotations_in(x509.load_pem_x509_certificate(store.tls_identity().pem.read_bytes()))
    for missed in pins[1:-1]:
        assert successor(missed, pins[-1].spki_hash, shown, 1000.0) == pins[-1]
    with pytest.raises(RemoteProtocolError, match="the TLS key is not the one"):
        successor(pins[0], pins[-1].spki_hash, shown, 1000.0)


def test_both_daemons_note_their_credentials_when_they_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ServerKeyStore(tmp_path / "given")
    given.identity()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given.folder))
    worker = tmp_path / "worker"
    WORKER_PART.start(WorkerProcess(WorkerSettings(), worker, lambda: b"", lambda: None, Guards, ALONE, lambda: True))
    gateway = ServerKeyStore(tmp_path / "gateway")
    link = LinkIdentity("gateway", bytes(32), PairedWorkers(gateway.folder))
    keys = KeyRing(gateway.folder)
    GATEWAY_PART.start(Foundation(GatewaySettings(), keys, gateway.identity(), tmp_path / "gateway", link))
    for state in (worker, tmp_path / "gateway"):
        assert (state / "keys" / FILE).read_text() == f"{given.folder}/identity.key\n"


def test_a_key_is_rotated_and_both_ids_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "worker.toml"
    config.write_text(f'[daemon]\nstate_dir = "{tmp_path / "state"}"\n')
    store = KeyStore(tmp_path / "state")
    before = key_id(store.identity().public)
    assert worker_main(["keys", "rotate", "--config", str(config), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"old": before, "new": key_id(store.identity().public)}
    assert worker_main(["keys", "rotate", "--config", str(config)]) == 0
    assert "Restart `edgespec run`" in capsys.readouterr().out


def test_the_gateways_identity_is_rotated_and_both_ids_are_shown(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gateway_main(["identity", "rotate"]) == 73
    assert "start the gateway once" in capsys.readouterr().err
    store = ServerKeyStore(home / "xdg_state_home" / "edgespec" / "gateway")
    before = key_id(store.identity().public)
    pin = store.tls_identity().spki_hash
    assert gateway_main(["identity", "rotate", "--json"]) == 0
    after = key_id(store.identity().public)
    assert json.loads(capsys.readouterr().out) == {"old": before, "new": after}
    assert after != before and store.tls_identity().spki_hash != pin
    assert gateway_main(["identity", "rotate"]) == 0
    shown = capsys.readouterr().out
    assert f"identity {after} is replaced by {key_id(store.identity().public)}" in shown
    assert "Restart the gateway" in shown and "within 90 days" in shown


def test_a_rotation_that_stopped_half_way_leaves_the_old_key(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    old = (tmp_path / "keys" / "identity.key").read_bytes() if store.identity() else b""
    rotate_identity(store)
    (tmp_path / "keys" / "identity.key").write_bytes(old)  # the statement was written, the key was not
    assert store.rotations() == ()
    made = rotate_identity(store)
    assert store.rotations() == (made,) and made.new_key == store.identity().public


def test_keys_that_are_credentials_or_do_not_exist_are_not_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyStoreError, match="does not exist, so there is nothing to rotate"):
        rotate_gateway(ServerKeyStore(tmp_path / "none"))
    given = ServerKeyStore(tmp_path / "given")
    given.identity()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given.folder))
    with pytest.raises(ConfigError, match="identity.key is a credential, which is never written"):
        rotate_gateway(ServerKeyStore(tmp_path / "gateway"))


def test_a_services_credential_is_not_rotated_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ServerKeyStore(tmp_path / "given")
    store = ServerKeyStore(tmp_path / "state")
    public = given.identity().public
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(given.folder))
    note_credentials(ServerKeyStore(tmp_path / "state"))
    with pytest.raises(ConfigError, match="is a credential, which is never written"):
        rotate_identity(store)
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    put = f"put this key into {store.folder}/identity.key .*, remove its LoadCredential= from the unit"
    with pytest.raises(ConfigError, match=f"{given.folder}/identity.key is a credential, .*{put}"):
        rotate_identity(store)
    assert not (store.folder / "identity.key").exists(), "no other key was made"
    shutil.copy(given.folder / "identity.key", store.folder / "identity.key")
    note_credentials(store)  # the service starts again, without credentials
    assert rotate_identity(store).old_key == public != store.identity().public
