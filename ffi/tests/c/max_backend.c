/*
 * Caps on backends. A cap is a process's: the argument says which case this one is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "amla.h"

#if defined(__aarch64__)
#define LOW "neon"
#define HIGH "neonbf16"
#define FOREIGN "avx2"
#else
#define LOW "avx2"
#define HIGH "avx512"
#define FOREIGN "neon"
#endif

#define CHECK(condition) check(condition, #condition)

static void check(int condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "max_backend: %s\n", what);
    exit(1);
}

/* How many backends there are; none but these two. */
static size_t available(const char *low) {
    size_t n = 0;
    const char *name;
    for (; (name = amla_available_backend(n)) != NULL; n++)
        CHECK(strcmp(name, "portable") == 0 || strcmp(name, low) == 0);
    return n;
}

static uint16_t numbers[64];
static float o[64], lse[1];
static _Alignas(AMLA_WORKSPACE_ALIGN) unsigned char workspace[AMLA_WORKSPACE_MAX];

static amla_status compute(const char *backend, struct amla_error_detail *detail) {
    struct amla_tensor rows = {.struct_size = sizeof rows, .dtype = AMLA_DTYPE_BF16,
                               .data = numbers, .len = 64, .strides = {64, 64, 64}};
    struct amla_output output = {.struct_size = sizeof output, .dtype = AMLA_DTYPE_F32, .o = o,
                                 .o_len = 64, .o_strides = {64, 64, 64}, .lse = lse,
                                 .lse_len = 1, .lse_strides = {1, 1, 1}};
    struct amla_call call = {.struct_size = sizeof call, .b = 1, .s_q = 1, .s_k = 1, .h_q = 1,
                             .h_kv = 1, .d_qk = 64, .d_v = 64, .softmax_scale = 1,
                             .backend = backend, .q = &rows, .kv = &rows, .output = &output};
    memset(detail, 0, sizeof *detail);
    detail->struct_size = sizeof *detail;
    return amla_run(&call, workspace, sizeof workspace, detail);
}

int main(int argc, char **argv) {
    struct amla_error_detail detail;
    const char *name = argc > 1 ? argv[1] : "";
    /* These use no backend. */
    CHECK(amla_abi_version() == AMLA_ABI_VERSION && amla_version_string()[0] != 0);
    CHECK(amla_status_string(AMLA_ERROR_BACKEND_IN_USE)[0] != 0);
    if (strcmp(name, "low") == 0) {
        CHECK(amla_set_max_backend(LOW) == AMLA_OK);
        CHECK(available(LOW) > 0 && available(LOW) <= 2);
        CHECK(compute(HIGH, &detail) == AMLA_ERROR_BACKEND_UNAVAILABLE);
        CHECK(strcmp(detail.argument, "backend") == 0);
        CHECK(strcmp(detail.message, "backend " HIGH " is above " LOW ", this process's cap") == 0);
        CHECK(compute("portable", &detail) == AMLA_OK && compute(NULL, &detail) == AMLA_OK);
        CHECK(amla_set_max_backend(LOW) == AMLA_ERROR_BACKEND_IN_USE);
    } else if (strcmp(name, "last") == 0) {
        CHECK(amla_set_max_backend(HIGH) == AMLA_OK);
        CHECK(amla_set_max_backend("portable") == AMLA_OK);
        CHECK(strcmp(amla_backend_name(), "portable") == 0 && available("portable") == 1);
        CHECK(compute(LOW, &detail) == AMLA_ERROR_BACKEND_UNAVAILABLE);
    } else if (strcmp(name, "late") == 0) {
        CHECK(compute(NULL, &detail) == AMLA_OK);
        CHECK(amla_set_max_backend("portable") == AMLA_ERROR_BACKEND_IN_USE);
        CHECK(amla_set_max_backend(HIGH) == AMLA_ERROR_BACKEND_IN_USE);
    } else if (strcmp(name, "other") == 0) {
        CHECK(amla_set_max_backend(NULL) == AMLA_ERROR_NULL_POINTER);
        CHECK(amla_set_max_backend("") == AMLA_ERROR_BACKEND_UNAVAILABLE);
        CHECK(amla_set_max_backend("avx1024") == AMLA_ERROR_BACKEND_UNAVAILABLE);
        CHECK(amla_set_max_backend(FOREIGN) == AMLA_ERROR_BACKEND_UNAVAILABLE);
        /* What was refused is nothing, and no use of a backend. */
        CHECK(amla_set_max_backend("portable") == AMLA_OK && available("portable") == 1);
    } else if (strcmp(name, "amx") == 0) {
        amla_permit_amx();
        CHECK(amla_set_max_backend(LOW) == AMLA_OK);
        CHECK(amla_permit_amx() == AMLA_ERROR_BACKEND_UNAVAILABLE);
        CHECK(compute("amx", &detail) == AMLA_ERROR_BACKEND_UNAVAILABLE);
    } else {
        /* The library reads no environment variables: this one says portable. */
        CHECK(strcmp(name, "environment") == 0 && getenv("AMLA_MAX_BACKEND") != NULL);
        CHECK(strcmp(getenv("AMLA_MAX_BACKEND"), "portable") == 0);
        compute(LOW, &detail);
        CHECK(strstr(detail.message, "cap") == NULL);
    }
    return 0;
}
