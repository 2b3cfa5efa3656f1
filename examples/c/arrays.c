/* Lists the arrays of a file or an URL, and the sum of those of f32.
 *
 * ./arrays model.safetensors */
#include <farpage.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words)
{
    fp_error error;
    if (count < 2) {
        fprintf(stderr, "usage: arrays ADDRESS\n");
        return 2;
    }
    fp_arrays *arrays = fp_load(words[1], NULL, &error);
    if (arrays == NULL) {
        fprintf(stderr, "arrays: error %d: %s\n", (int)error.code, error.message);
        fp_error_free(&error);
        return 1;
    }
    printf("%s\n", fp_arrays_kind(arrays));
    for (size_t i = 0; i < fp_array_count(arrays); i++) {
        const fp_array *array = fp_array_at(arrays, i);
        printf("%s %s [", array->name, array->dtype);
        for (size_t d = 0; d < array->dimensions; d++)
            printf("%s%" PRIu64, d > 0 ? ", " : "", array->shape[d]);
        printf("]");
        if (strcmp(array->dtype, "f32") == 0) {
            double sum = 0;
            for (uint64_t at = 0; at < array->bytes; at += sizeof(float)) {
                float number; /* not aligned in every file */
                memcpy(&number, (const char *)array->data + at, sizeof number);
                sum += (double)number;
            }
            printf(" sum %g", sum);
        }
        printf("\n");
    }
    fp_arrays_close(arrays);
    return 0;
}
