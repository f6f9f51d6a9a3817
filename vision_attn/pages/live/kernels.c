// The loops that take the time, for WebAssembly with 128-bit SIMD. Numbers are float32.
//
// docs/adr/0012-live-page.md says how kernels.wasm is made of this file. js/kernels.js has the
// same in plain JavaScript, for a browser without WebAssembly SIMD.

#include <wasm_simd128.h>

#define EXPORT(name) __attribute__((export_name(#name)))
#define ROWS 4    // of x, that one pass over a panel serves
#define COLUMNS 8 // of a panel

typedef v128_t four;

static inline four all(float x) { return wasm_f32x4_splat(x); }
static inline four add(four a, four b) { return wasm_f32x4_add(a, b); }
static inline four sub(four a, four b) { return wasm_f32x4_sub(a, b); }
static inline four mul(four a, four b) { return wasm_f32x4_mul(a, b); }
static inline four ratio(four a, four b) { return wasm_f32x4_div(a, b); }

static inline float sum(four a) {
  return wasm_f32x4_extract_lane(a, 0) + wasm_f32x4_extract_lane(a, 1) +
         wasm_f32x4_extract_lane(a, 2) + wasm_f32x4_extract_lane(a, 3);
}

// The first `count` of four numbers at p, the others `rest`; and back.
static __attribute__((noinline)) four load_few(const float *p, int count, float rest) {
  float padded[4] = {rest, rest, rest, rest};
  for (int i = 0; i < count; i++) padded[i] = p[i];
  return wasm_v128_load(padded);
}

static __attribute__((noinline)) void store_few(float *p, four a, int count) {
  float padded[4];
  wasm_v128_store(padded, a);
  for (int i = 0; i < count; i++) p[i] = padded[i];
}

static inline four load(const float *p, int count, float rest) {
  return count >= 4 ? wasm_v128_load(p) : load_few(p, count, rest);
}

static inline void store(float *p, four a, int count) {
  if (count >= 4) wasm_v128_store(p, a);
  else store_few(p, a, count);
}

// exp(x) to 2 units in the last place: 2^n times the Taylor polynomial of exp(r), |r| <= ln 2 / 2.
static inline four exponential(four x) {
  x = wasm_f32x4_max(wasm_f32x4_min(x, all(88.0f)), all(-87.0f));
  four n = wasm_f32x4_nearest(mul(x, all(1.44269504088896341f)));
  four r = sub(sub(x, mul(n, all(0.693359375f))), mul(n, all(-2.12194440e-4f)));
  four y = all(1.0f / 5040);
  y = add(mul(y, r), all(1.0f / 720));
  y = add(mul(y, r), all(1.0f / 120));
  y = add(mul(y, r), all(1.0f / 24));
  y = add(mul(y, r), all(1.0f / 6));
  y = add(mul(y, r), all(0.5f));
  y = add(mul(y, r), all(1));
  y = add(mul(y, r), all(1));
  four exponent = wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(n), wasm_i32x4_splat(127));
  return mul(y, wasm_i32x4_shl(exponent, 23));
}

// out (m n) = x (m k) w (k n) + bias. w lies in panels of 8 columns, [panel][k][8], the last one
// padded. ldx, ldo: numbers from one row to the next. bias may be 0.
EXPORT(matmul)
void matmul(const float *x, int ldx, const float *w, const float *bias, float *out, int ldo, int m,
            int n, int k) {
  for (int left = 0; left < n; left += COLUMNS) {
    const float *panel = w + (long)left * k;
    int columns = n - left < COLUMNS ? n - left : COLUMNS;
    four first = bias ? load(bias + left, columns, 0) : all(0);
    four second = bias && columns > 4 ? load(bias + left + 4, columns - 4, 0) : all(0);
    for (int top = 0; top < m; top += ROWS) {
      int rows = m - top < ROWS ? m - top : ROWS;
      const float *row[ROWS];
      four sums[ROWS][2];
      for (int i = 0; i < ROWS; i++) {
        row[i] = x + (long)(top + (i < rows ? i : 0)) * ldx;
        sums[i][0] = first;
        sums[i][1] = second;
      }
      const float *weight = panel;
      for (int at = 0; at < k; at++, weight += COLUMNS) {
        four a = wasm_v128_load(weight), b = wasm_v128_load(weight + 4);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
          four value = wasm_v128_load32_splat(row[i] + at);
          sums[i][0] = add(sums[i][0], mul(value, a));
          sums[i][1] = add(sums[i][1], mul(value, b));
        }
      }
      for (int i = 0; i < rows; i++) {
        float *place = out + (long)(top + i) * ldo + left;
        store(place, sums[i][0], columns);
        if (columns > 4) store(place + 4, sums[i][1], columns - 4);
      }
    }
  }
}

// Each row s of scores (m n) becomes w = softmax(scale s). With x_j = scale s_j - max (scale s),
// totals (m) get sum_j exp(x_j) and means (m) sum_j w_j x_j: a row's entropy is log(total) - mean.
EXPORT(softmax)
void softmax(float *scores, float *totals, float *means, float scale, int m, int n) {
  four factor = all(scale);
  for (int i = 0; i < m; i++, scores += n) {
    four most = all(-3.0e38f);
    for (int j = 0; j < n; j += 4)
      most = wasm_f32x4_max(most, mul(load(scores + j, n - j, scores[0]), factor));
    float largest = wasm_f32x4_extract_lane(most, 0);
    for (int lane = 1; lane < 4; lane++) {
      float other = ((float *)&most)[lane];
      if (other > largest) largest = other;
    }
    four total = all(0), moment = all(0);
    for (int j = 0; j < n; j += 4) {
      four above = sub(mul(load(scores + j, n - j, 0), factor), all(largest));
      four weight = exponential(above);
      if (n - j < 4) weight = load((float *)&weight, n - j, 0);
      total = add(total, weight);
      moment = add(moment, mul(weight, above));
      store(scores + j, weight, n - j);
    }
    totals[i] = sum(total);
    means[i] = sum(moment) / totals[i];
    four share = all(1 / totals[i]);
    for (int j = 0; j < n; j += 4) store(scores + j, mul(load(scores + j, n - j, 0), share), n - j);
  }
}

// Layer norm of each row of x (m n).
EXPORT(norm)
void norm(const float *x, const float *weight, const float *bias, float *out, float eps, int m,
          int n) {
  for (int i = 0; i < m; i++, x += n, out += n) {
    four total = all(0), squares = all(0);
    for (int j = 0; j < n; j += 4) total = add(total, load(x + j, n - j, 0));
    float mean = sum(total) / n;
    for (int j = 0; j < n; j += 4) {
      four away = sub(load(x + j, n - j, mean), all(mean));
      squares = add(squares, mul(away, away));
    }
    float deviation = __builtin_sqrtf(sum(squares) / n + eps);
    for (int j = 0; j < n; j += 4) {
      four y = ratio(sub(load(x + j, n - j, 0), all(mean)), all(deviation));
      y = add(mul(y, load(weight + j, n - j, 0)), load(bias + j, n - j, 0));
      store(out + j, y, n - j);
    }
  }
}

// x / 2 (1 + erf(x / sqrt 2)), erf by Abramowitz and Stegun 7.1.26, off by 1.5e-7 at most.
EXPORT(gelu)
void gelu(const float *x, float *out, int count) {
  for (int j = 0; j < count; j += 4) {
    four value = load(x + j, count - j, 0);
    four z = mul(wasm_f32x4_abs(value), all(0.70710678118654752f));
    four t = ratio(all(1), add(all(1), mul(z, all(0.3275911f))));
    four y = all(1.061405429f);
    y = add(mul(y, t), all(-1.453152027f));
    y = add(mul(y, t), all(1.421413741f));
    y = add(mul(y, t), all(-0.284496736f));
    y = add(mul(y, t), all(0.254829592f));
    y = mul(mul(y, t), exponential(wasm_f32x4_neg(mul(z, z))));  // 1 - erf(|x| / sqrt 2)
    four tail = mul(mul(wasm_f32x4_abs(value), all(0.5f)), y);
    store(out + j, sub(wasm_f32x4_max(value, all(0)), tail), count - j);
  }
}

// max(x, 0)
EXPORT(relu)
void relu(const float *x, float *out, int count) {
  for (int j = 0; j < count; j += 4)
    store(out + j, wasm_f32x4_max(load(x + j, count - j, 0), all(0)), count - j);
}

// x + y
EXPORT(add)
void add_all(const float *x, const float *y, float *out, int count) {
  for (int j = 0; j < count; j += 4)
    store(out + j, add(load(x + j, count - j, 0), load(y + j, count - j, 0)), count - j);
}

// sums += share x
EXPORT(gather)
void gather(float *sums, const float *x, float share, int count) {
  for (int j = 0; j < count; j += 4) {
    four more = mul(load(x + j, count - j, 0), all(share));
    store(sums + j, add(load(sums + j, count - j, 0), more), count - j);
  }
}
