"""A thin layer over llama.cpp: one model, one context with shared KV cells, batches whose rows name sequences.

Every call of llama.cpp goes through `ctypes.CDLL`, which releases the interpreter's lock for the duration of the call:
a decode in one thread does not hold up an event loop in another. A context belongs to one thread at a time.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from edgespec.core.errors import ModelError
from edgespec.shared.procstat import available_memory

_ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
_errors: deque[str] = deque(maxlen=20)


class Row(NamedTuple):
    """One token of a batch. It attends to the cells of its sequences at lower positions: the same cells in each."""

    token: int
    position: int
    sequences: Sequence[int]
    wants_logits: bool = False


class Context:
    """A loaded model and its KV cells, which all sequences share."""

    def __init__(
        self,
        path: Path,
        *,
        cells: int,
        sequences: int,
        batch: int,
        threads: int,
        outputs: int = 0,
        gpu_layers: int = 0,
        exact: bool = False,
        progress: Callable[[], None] | None = None,
    ) -> None:
        """`sequences`: ids; `batch`: maximum rows computed at once; `outputs`: maximum rows with logits of a decode
        (at least `sequences`); `gpu_layers`: layers computed on a GPU, 0 for the CPU alone; `exact`: with
        the attention code whose sums over cells follow the order of the cells; `progress` is called often while the
        model loads, and from then on at each operation on the CPU.

        Raises ModelError: llama.cpp cannot load the file, the model cannot evaluate trees, memory does not suffice, or
        there is no GPU.
        """
        quiet()
        cells = -(-cells // 256) * 256  # as llama.cpp rounds; a batch may then fill them
        self._context = None
        self._model = _load(path, gpu_layers, progress)
        if not gpu_layers:
            self._require_memory(path, cells)

        params = llama.llama_context_default_params()
        params.n_ctx = cells
        params.n_batch = cells
        params.n_ubatch = min(batch, cells)
        params.n_seq_max = sequences
        params.n_outputs_max = max(outputs, sequences)  # fewer would abort
        params.n_threads = threads
        params.n_threads_batch = threads
        params.kv_unified = True
        params.offload_kqv = gpu_layers != 0
        params.op_offload = gpu_layers != 0
        if exact:
            params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED

        _errors.clear()
        self._context = llama.llama_init_from_model(self._model, params)
        if self._context is None:
            self.close()
            raise ModelError(f"no memory for {cells} tokens of context with {path}: lower `context`{reason()}")

        if progress is not None:
            self._on_operation = llama.ggml_abort_callback(lambda _: bool(progress()))  # held here, as C calls it
            llama.llama_set_abort_callback(self._context, self._on_operation, None)
        self._memory = llama.llama_get_memory(self._context)
        vocabulary = llama.llama_model_get_vocab(self._model)
        self.vocab_size = int(llama.llama_vocab_n_tokens(vocabulary))
        self.trained_context = int(llama.llama_model_n_ctx_train(self._model))
        self.cells = int(llama.llama_n_ctx(self._context))
        self.decodes = 0
        """Decodes begun so far; each ends the life of the views of the last one's logits."""
        self._logits_row = ctypes.c_float * self.vocab_size
        self._make_batch(sequences)

    def _require_memory(self, path: Path, cells: int) -> None:
        """Checks free memory first: llama.cpp touches its whole reservation and would be OOM-killed."""
        model = self._model
        heads = max(llama.llama_model_n_head(model), 1)
        head_size = llama.llama_model_n_embd(model) // heads
        layer_bytes = 2 * 2 * head_size * llama.llama_model_n_head_kv(model)  # K and V, two bytes each
        needed = cells * layer_bytes * llama.llama_model_n_layer(model)

        available = available_memory()
        if needed > available:
            self.close()
            raise ModelError(
                f"a context of {cells} tokens of {path} needs {needed / 1e9:.1f} GB of memory "
                f"and {available / 1e9:.1f} GB are available: lower `context`"
            )

    def _make_batch(self, sequences: int) -> None:
        rows = self.cells
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._wanted = np.zeros(rows, np.int8)
        self._counts = np.zeros(rows, np.int32)
        self._ids = np.zeros((rows, sequences), np.int32)

        # llama_batch has a pointer per row; they point into the table of ids and never change.
        offsets = np.arange(rows, dtype=np.uintp) * self._ids.strides[0]
        self._id_rows = self._ids.ctypes.data + offsets

        int32_pointer = ctypes.POINTER(ctypes.c_int32)
        self._batch = llama.llama_batch(
            n_tokens=0,
            token=self._tokens.ctypes.data_as(int32_pointer),
            pos=self._positions.ctypes.data_as(int32_pointer),
            n_seq_id=self._counts.ctypes.data_as(int32_pointer),
            seq_id=self._id_rows.ctypes.data_as(ctypes.POINTER(int32_pointer)),
            logits=self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def decode(self, rows: Sequence[Row]) -> bool:
        """Evaluates the rows, positions ascending; False if the KV cells do not suffice (then nothing has changed).

        Raises ModelError when llama.cpp fails otherwise.
        """
        count = len(rows)
        if count > self.cells:
            return False

        # The batch's arrays are filled in place; llama.cpp reads the first `count` entries of each.
        self._batch.n_tokens = count
        self._tokens[:count] = [row.token for row in rows]
        self._positions[:count] = [row.position for row in rows]
        self._wanted[:count] = [row.wants_logits for row in rows]
        self._counts[:count] = [len(row.sequences) for row in rows]
        for ids, row in zip(self._ids, rows):
            ids[: len(row.sequences)] = row.sequences

        _errors.clear()
        self.decodes += 1
        code = llama.llama_decode(self._context, self._batch)
        if code not in (0, 1):
            raise ModelError(f"llama.cpp could not evaluate a batch of {count} tokens (code {code})")

        return bool(code == 0)

    def logits(self, index: int) -> NDArray[np.float32]:
        """Raw logits, shape [vocab_size], of a row of the last decode: a read-only view, valid until the next one.

        Raises ModelError if llama.cpp has none.
        """
        first = llama.llama_get_logits_ith(self._context, index)
        if not first:
            raise ModelError(f"llama.cpp has no logits of a row that it evaluated{reason()}")

        address = ctypes.addressof(first.contents)
        buffer = memoryview(self._logits_row.from_address(address))
        row = np.frombuffer(buffer, np.float32)
        row.flags.writeable = False
        return row

    def all_logits(self, count: int) -> NDArray[np.float32]:
        """The same of the last decode's `count` rows with logits, in their order, shape [count, vocab_size].

        Raises ModelError if llama.cpp has none.
        """
        first = llama.llama_get_logits(self._context)
        if not first:
            raise ModelError(f"llama.cpp has no logits of the rows that it evaluated{reason()}")

        table: NDArray[np.float32] = np.ctypeslib.as_array(first, (count, self.vocab_size))
        table.flags.writeable = False
        return table

    def compact(self, sequences: Sequence[int]) -> None:
        """Moves the cells of these sequences to the beginning, in the order of their positions; others become free.

        Cells that two of them shared are there twice afterwards. Raises ModelError if they do not fit then.
        """
        states = [self._state_of(sequence) for sequence in sequences]
        llama.llama_memory_clear(self._memory, False)

        for sequence, state in zip(sequences, states, strict=True):
            if not llama.llama_state_seq_set_data(self._context, state, len(state), sequence):
                raise ModelError(f"llama.cpp could not move the cells of a sequence{reason()}")

    def _state_of(self, sequence: int) -> ctypes.Array[ctypes.c_uint8]:
        """A copy of the keys and values of a sequence."""
        size = llama.llama_state_seq_get_size(self._context, sequence)
        state = (ctypes.c_uint8 * size)()
        llama.llama_state_seq_get_data(self._context, state, size, sequence)
        return state

    def use_threads(self, threads: int) -> None:
        """Evaluates with so many threads from the next decode on."""
        llama.llama_set_n_threads(self._context, threads, threads)

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Lets `target` share the cells of `source` at positions [start, end)."""
        if start < end:
            llama.llama_memory_seq_cp(self._memory, source, target, start, end)

    def trim(self, sequence: int, start: int) -> None:
        """Removes all positions from `start` on from a sequence; cells of no other sequence become free."""
        llama.llama_memory_seq_rm(self._memory, sequence, start, -1)

    def close(self) -> None:
        """Frees the memory; the context cannot be used any more."""
        if self._context is not None:
            llama.llama_free(self._context)
        if self._model is not None:
            llama.llama_model_free(self._model)

        self._context = None
        self._model = None


def _load(
    path: Path,
    gpu_layers: int,
    progress: Callable[[], None] | None,
) -> llama.llama_model_p:
    """The weights, without a context. Raises ModelError."""
    require_gpu(gpu_layers)
    params = llama.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    if progress is not None:
        params.progress_callback = llama.llama_progress_callback(lambda _fraction, _: not progress())

    _errors.clear()
    model = llama.llama_model_load_from_file(os.fsencode(path), params)
    if model is None:
        raise ModelError(f"llama.cpp cannot load {path}: fetch it again or choose another GGUF file{reason()}")

    # A recurrent state cannot be rolled back to an earlier token, which every misprediction requires.
    if (
        llama.llama_model_is_recurrent(model)
        or llama.llama_model_is_hybrid(model)
        or llama.llama_model_has_encoder(model)
    ):
        llama.llama_model_free(model)
        raise ModelError(f"{path} cannot evaluate trees of tokens: choose a plain decoder-only transformer")

    return model


def require_gpu(gpu_layers: int) -> None:
    """Raises ModelError if layers are to be computed on a GPU and llama.cpp has none."""
    if gpu_layers and not llama.llama_supports_gpu_offload():
        raise ModelError(
            f"`n_gpu_layers` = {gpu_layers} asks for a GPU, and llama.cpp finds none or was built without: set it to 0"
        )


def reason() -> str:
    """llama.cpp's first line about an error, which is the cause, without the name of its function."""
    if not _errors:
        return ""

    line = _errors[0].splitlines()[0]
    return f" ({line.split(': ', 1)[-1]})"


@llama.llama_log_callback
def _on_log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    if level == _ERROR_LEVEL:
        _errors.append(text.decode(errors="replace").strip())


def quiet() -> None:
    """Captures llama.cpp's log lines, which otherwise go to stderr; errors from now on are kept for `reason`."""
    _errors.clear()
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")  # a failed assertion would otherwise start a debugger
    llama.llama_log_set(_on_log, ctypes.c_void_p(0))
    llama.llama_backend_init()
