/* Matrix multiplication: each part computes a band of the product's rows.
 *
 *     matmul --part I --of N [--name /NAME] [--size 1024]
 *
 * The factors are small whole numbers, so that every order of adding them gives the same product. */
#define _GNU_SOURCE
#include "parallel.h"

/* Rows of the right factor that a processor's cache holds while they are used. */
enum { BLOCK = 64 };

static double factor(uint64_t seed, long size, long row, long column)
{
    return (double)(chance(seed + (uint64_t)(row * size + column)) % 17) - 8;
}

static void set(double *left, double *right, long size)
{
    for (long row = 0; row < size; row++)
        for (long column = 0; column < size; column++) {
            left[row * size + column] = factor(1u << 30, size, row, column);
            right[row * size + column] = factor(2u << 30, size, row, column);
        }
}

static void multiply(const double *left, const double *right, double *product, long size,
                     long first, long end_row)
{
    for (long block = 0; block < size; block += BLOCK) {
        long end_block = block + BLOCK < size ? block + BLOCK : size;
        for (long row = first; row < end_row; row++) {
            double *restrict to = product + row * size;
            for (long middle = block; middle < end_block; middle++) {
                double times = left[row * size + middle];
                const double *restrict from = right + middle * size;
                for (long column = 0; column < size; column++)
                    to[column] += times * from[column];
            }
        }
    }
}

/* Whether product * v is left * (right * v), for a vector that is unlike for all columns. */
static int is_product(const double *left, const double *right, const double *product, long size)
{
    double *vector = calloc(3 * (size_t)size, sizeof *vector);
    if (!vector)
        fail("matmul: no memory for three vectors of %ld numbers", size);
    double *by_right = vector + size, *by_both = by_right + size;
    int is_right = 1;
    for (long at = 0; at < size; at++)
        vector[at] = (double)(chance((uint64_t)at) % 1000);
    for (long row = 0; row < size; row++)
        for (long column = 0; column < size; column++)
            by_right[row] += right[row * size + column] * vector[column];
    for (long row = 0; row < size; row++) {
        double by_product = 0;
        for (long column = 0; column < size; column++) {
            by_both[row] += left[row * size + column] * by_right[column];
            by_product += product[row * size + column] * vector[column];
        }
        is_right &= by_product == by_both[row];
    }
    free(vector);
    return is_right;
}

static uint64_t sum(const double *product, long size)
{
    uint64_t sum = 0;
    for (long at = 0; at < size * size; at++)
        sum += chance((uint64_t)at) * (uint64_t)(int64_t)product[at];
    return sum;
}

int main(int argc, char **argv)
{
    struct part part = part_of(argc, argv, "matmul");
    long size = number(argc, argv, "--size", 1024, 1, 16384);
    no_more(&part);
    size_t bytes = pages((size_t)(size * size) * sizeof(double));
    char *memory = share(&part, 3 * bytes);
    double *left = (double *)memory, *right = (double *)(memory + bytes),
           *product = (double *)(memory + 2 * bytes);
    if (part.number == 0)
        set(left, right, size);
    begin(&part);
    multiply(left, right, product, size, first_of(size, part.number, part.of),
             first_of(size, part.number + 1, part.of));
    end(&part);
    if (part.number == 0)
        judge(&part, sum(product, size), is_product(left, right, product, size));
    return report(&part, "");
}
