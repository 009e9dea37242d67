// Decodes rows of ik_llama.cpp's element types by that program's own code, the reference for this
// package. From a checkout of ikawrakow/ik_llama.cpp at commit 8337e4cd, built in its folder b:
//
//   g++ -std=gnu++20 -I$IK/ggml/include -I$IK/ggml/src ikgoldens.cpp -o ikgoldens -L$IK/b/ggml/src -lggml
//
// with -ffp-contract=off for iqk_quantize.cpp: fused, the cubic of IQ6_K rounds otherwise by up to
// 2⁻²³ of a sub-block's largest value. Other types do not depend on it.
//
//   ikgoldens > ikgoldens.json             random rows and their values, in base64, little-endian
//   ikgoldens decode TYPE COLS             rows on standard input, f32 on standard output
//   ikgoldens encode TYPE COLS             the other way, quantized without an importance matrix

#include "ggml.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

// What a row holds of scales in floating point: at its head, and at the start of each block.
struct Layout {
    ggml_type type;
    size_t head, block; // bytes: 4 for f32, 2 for f16, 0 for none
};

const Layout layouts[] = {
    {GGML_TYPE_IQ2_K, 0, 2},
    {GGML_TYPE_IQ3_K, 0, 2},
    {GGML_TYPE_IQ4_K, 0, 2},
    {GGML_TYPE_IQ5_K, 0, 2},
    {GGML_TYPE_IQ4_KS, 4, 0},
    {GGML_TYPE_IQ5_KS, 4, 0},
    {GGML_TYPE_IQ4_KSS, 4, 0},
    {GGML_TYPE_IQ2_KS, 2, 0},
    {GGML_TYPE_IQ3_KS, 2, 0},
    {GGML_TYPE_IQ2_KL, 2, 0},
    {GGML_TYPE_IQ1_KT, 4, 0},
    {GGML_TYPE_IQ2_KT, 4, 0},
    {GGML_TYPE_IQ3_KT, 4, 0},
    {GGML_TYPE_IQ4_KT, 4, 0},
    {GGML_TYPE_IQ6_K, 0, 2},
    {GGML_TYPE_Q6_0, 0, 2},
};

using Bytes = std::vector<unsigned char>;

std::string base64(const void * data, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const auto * p = static_cast<const unsigned char *>(data);
    std::string out;
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = p[i] << 16 | (i + 1 < n ? p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);
        for (size_t k = 0; k < 4; ++k) out += i + k > n ? '=' : digits[v >> (18 - 6 * k) & 63];
    }
    return out;
}

void put_scale(unsigned char * at, size_t size, float v) {
    ggml_fp16_t h = ggml_fp32_to_fp16(v);
    if (size == 4) std::memcpy(at, &v, 4);
    if (size == 2) std::memcpy(at, &h, 2);
}

Bytes read_all() {
    Bytes in;
    unsigned char buf[1 << 16];
    for (size_t n; (n = std::fread(buf, 1, sizeof buf, stdin)) > 0;) in.insert(in.end(), buf, buf + n);
    return in;
}

std::vector<float> decode(ggml_type type, const Bytes & rows, int64_t cols) {
    size_t size = ggml_row_size(type, cols);
    std::vector<float> out(rows.size() / size * cols);
    auto to_float = ggml_internal_get_type_traits(type).to_float;
    for (size_t r = 0; r < rows.size() / size; ++r) to_float(rows.data() + r * size, out.data() + r * cols, cols);
    return out;
}

void print_goldens(FILE * result) {
    const int64_t rows = 2, cols = 512;
    std::mt19937 random(20250214);
    std::fprintf(result, "[");
    for (const Layout & l : layouts) {
        size_t size = ggml_row_size(l.type, cols), step = ggml_type_size(l.type);
        Bytes raw(rows * size);
        for (auto & b : raw) b = random() >> 24;
        // Scales of both signs, one subnormal in half precision, one zero.
        for (int64_t r = 0; r < rows; ++r) {
            unsigned char * row = raw.data() + r * size;
            put_scale(row, l.head, r == 0 ? 0.00123f : -3e-7f);
            for (size_t at = l.head; l.block > 0 && at < size; at += step) {
                float v = 0.01f * (int(random() >> 24) - 128);
                if (r == 0 && at == l.head) v = -3e-7f;
                if (r == rows - 1 && at + step == size) v = 0;
                put_scale(row + at, l.block, v);
            }
        }
        auto values = decode(l.type, raw, cols);
        std::string name = ggml_type_name(l.type);
        for (auto & c : name) c = std::toupper(c);
        std::fprintf(result, "%s\n {\n  \"type\": \"%s\",\n  \"number\": %d,\n  \"cols\": %d,\n  \"blocks\": \"%s\",\n  \"values\": \"%s\"\n }",
            &l == layouts ? "" : ",", name.c_str(), int(l.type), int(cols), base64(raw.data(), raw.size()).c_str(),
            base64(values.data(), 4 * values.size()).c_str());
    }
    std::fprintf(result, "\n]\n");
}

} // namespace

int main(int argc, char ** argv) {
    ggml_free(ggml_init({1 << 20, nullptr, false})); // fills the tables of half-precision numbers
    // The quantizers print to the standard output: theirs is the standard error from here on.
    FILE * result = fdopen(dup(1), "wb");
    dup2(2, 1);
    if (argc == 1) {
        print_goldens(result);
        std::fclose(result);
        return 0;
    }
    if (argc != 4) return 2;
    auto type = ggml_type(std::atoi(argv[2]));
    int64_t cols = std::atoll(argv[3]);
    Bytes in = read_all();
    if (std::strcmp(argv[1], "decode") == 0) {
        auto out = decode(type, in, cols);
        std::fwrite(out.data(), 4, out.size(), result);
    } else {
        int64_t rows = in.size() / (4 * cols);
        Bytes out(rows * ggml_row_size(type, cols));
        ggml_quantize_chunk(type, reinterpret_cast<const float *>(in.data()), out.data(), 0, rows, cols, nullptr, nullptr);
        std::fwrite(out.data(), 1, out.size(), result);
    }
    std::fclose(result);
}
