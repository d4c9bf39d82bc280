// Whether the compiler stores all 64 bytes of a tile configuration before `ldtilecfg` reads them: exit code 0 if so.
//
// The intrinsic of gcc 12.2 declares 8 bytes as read, so that the stores of the others may be dropped. `init` is ggml's
// `ggml_tile_config_init` (ggml-cpu/amx/mmq.cpp), in a function of its own, where gcc drops them at each level of
// optimisation. A macro of the assembler takes the instruction's place and copies its operand, so that this runs on
// processors without AMX. A compiler that does not pass its instructions to an assembler as text (clang) fails here.
#include <immintrin.h>
#include <stdint.h>

extern "C" {
uint8_t loaded[64];
uint64_t saved[2];
}

asm(R"(
    .macro ldtilecfg operand:vararg
        mov %rax, saved(%rip)
        mov %rdx, saved+8(%rip)
        lea \operand, %rax
        .irp at, 0, 8, 16, 24, 32, 40, 48, 56
            mov \at(%rax), %rdx
            mov %rdx, loaded+\at(%rip)
        .endr
        mov saved(%rip), %rax
        mov saved+8(%rip), %rdx
    .endm
)");

struct tile_config_t {
    uint8_t palette_id = 0;
    uint8_t start_row = 0;
    uint8_t reserved_0[14] = {0};
    uint16_t colsb[16] = {0};
    uint8_t rows[16] = {0};
};

__attribute__((noinline)) void init(void) {
    static thread_local bool done = false;
    if (done) {
        return;
    }
    alignas(64) tile_config_t tc = {};
    tc.palette_id = 1;
    tc.start_row = 0;
    tc.rows[0] = 8;   tc.colsb[0] = 64;
    tc.rows[1] = 8;   tc.colsb[1] = 64;
    tc.rows[2] = 16;  tc.colsb[2] = 32;
    tc.rows[3] = 16;  tc.colsb[3] = 32;
    tc.rows[4] = 16;  tc.colsb[4] = 64;
    tc.rows[5] = 16;  tc.colsb[5] = 64;
    tc.rows[6] = 16;  tc.colsb[6] = 64;
    tc.rows[7] = 16;  tc.colsb[7] = 64;
    _tile_loadconfig(&tc);
    done = true;
}

int main() {
    static const uint8_t rows[16] = {8, 8, 16, 16, 16, 16, 16, 16};
    static const uint16_t colsb[16] = {64, 64, 32, 32, 64, 64, 64, 64};
    init();
    volatile uint8_t *copy = loaded;  // written by the macro, which the compiler does not see
    bool right = copy[0] == 1;
    for (int i = 0; i < 16; i++) {
        right = right && copy[48 + i] == rows[i] && copy[16 + 2 * i] + 256 * copy[17 + 2 * i] == colsb[i];
    }
    return right ? 0 : 1;
}
