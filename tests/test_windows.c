/* Rows of tokens, training windows and mixtures of them. */
#include "allocation.h"
#include "data/mixture.h"
#include "made_corpus.h"

#include <math.h>
#include <string.h>

/* ---- windows ---- */

/* What the stream of tokens is, from its definition. */
static int32_t token_at(const dr_documents *documents, int64_t at) {
    for (int64_t i = 0; i < documents->count; i++) {
        if (at == 0) return DR_DOCUMENT_START;
        if (at <= documents->at[i].bytes) return documents->at[i].text[at - 1];
        at -= documents->at[i].bytes + 1;
    }
    fail_msg("no token there");
    return -1;
}

static void test_windows_visit_all_text(void **state) {
    (void)state;
    enum { LENGTH = 16 };
    const int64_t sizes[] = {333, 1, 420};
    dr_corpus corpus = made_corpus(sizes, 3);
    dr_windows *windows;
    dr_tokens *tokens;
    uint8_t marks[LENGTH];
    assert_int_equal(dr_tokens_of_bytes(&corpus.documents, &tokens), DR_OK);
    assert_int_equal(dr_windows_create(tokens, LENGTH, 5, &windows), DR_OK);
    assert_int_equal(tokens->count, 757);
    assert_int_equal(windows->windows, 757 / LENGTH - 1);
    int32_t ids[LENGTH], labels[LENGTH];
    int64_t phases = 0, last_phase = -1;
    for (int64_t epoch = 0; epoch < 8; epoch++) {
        uint8_t seen[64] = {0};
        for (int64_t i = 0; i < windows->windows; i++) {
            assert_int_equal(dr_windows_get(windows, epoch * windows->windows + i, ids, labels, marks), DR_OK);
            int64_t number = windows->current.order[i], from = windows->current.phase + number * LENGTH;
            assert_false(seen[number]++);
            for (int64_t t = 0; t < LENGTH; t++) {
                assert_int_equal(ids[t], token_at(&corpus.documents, from + t));
                assert_int_equal(labels[t], token_at(&corpus.documents, from + t + 1));
                assert_int_equal(marks[t], ids[t] == DR_DOCUMENT_START ? DR_TOKEN_BEGINS : 0);
            }
        }
        phases += windows->current.phase != last_phase;
        last_phase = windows->current.phase;
    }
    assert_true(phases >= 4);

    /* Wherever a run goes on, the order is the same, and the next epoch's grows with each window. */
    dr_windows *resumed;
    int32_t again[LENGTH];
    assert_int_equal(dr_windows_create(tokens, LENGTH, 5, &resumed), DR_OK);
    int64_t middle = 3 * windows->windows + windows->windows / 2;
    dr_windows_prepare(resumed, middle);
    for (int64_t i = middle; i < middle + 2 * windows->windows; i++) {
        assert_int_equal(dr_windows_get(windows, i, ids, labels, marks), DR_OK);
        assert_int_equal(dr_windows_get(resumed, i, again, labels, marks), DR_OK);
        assert_memory_equal(ids, again, sizeof ids);
        assert_int_equal(resumed->next.done, i % windows->windows + 1);
    }
    dr_windows_destroy(resumed);

    int32_t far[LENGTH], near[LENGTH]; /* the same window whatever was asked for before */
    dr_windows_get(windows, 1000003, far, labels, marks);
    dr_windows_get(windows, 7, near, labels, marks);
    dr_windows_get(windows, 1000003, ids, labels, marks);
    assert_memory_equal(ids, far, sizeof far);
    assert_memory_not_equal(near, far, sizeof far);
    dr_windows_destroy(windows);
    dr_tokens_destroy(tokens);
    free_corpus(&corpus);
}

static void test_shortest_text_for_a_window(void **state) {
    (void)state;
    const int64_t size = 16;
    dr_corpus corpus = made_corpus(&size, 1);
    dr_windows *windows;
    dr_tokens *tokens;
    int32_t ids[16], labels[16];
    uint8_t marks[16];
    assert_int_equal(dr_tokens_of_bytes(&corpus.documents, &tokens), DR_OK);
    assert_int_equal(dr_windows_create(tokens, 16, 5, &windows), DR_OK); /* 17 tokens: one window and a label */
    for (int64_t i = 0; i < 3; i++) {
        dr_windows_get(windows, i, ids, labels, marks);
        assert_int_equal(ids[0], DR_DOCUMENT_START);
        assert_int_equal(labels[15], corpus.documents.at[0].text[15]);
    }
    dr_windows_destroy(windows);
    assert_int_equal(dr_windows_create(tokens, 17, 5, &windows), DR_ERROR_ARGUMENT);
    assert_null(windows);
    assert_non_null(strstr(dr_last_error(), "17 tokens"));
    dr_tokens_destroy(tokens);
    free_corpus(&corpus);
}

/* ---- documents in rows, and mixtures ---- */

static void test_documents_of_rows(void **state) {
    (void)state;
    const int64_t sizes[] = {333, 1, 420};
    dr_corpus corpus = made_corpus(sizes, 3);
    dr_tokens *tokens, *part;
    dr_token_documents found;
    assert_int_equal(dr_tokens_of_bytes(&corpus.documents, &tokens), DR_OK);
    assert_int_equal(dr_token_documents_find(tokens, &found), DR_OK);
    assert_int_equal(found.count, 3);
    assert_true(found.begin[0] == 0 && found.begin[1] == 334 && found.begin[2] == 336 && found.begin[3] == 757);
    dr_token_documents_release(&found);

    int32_t ids[9], whole[9];
    uint8_t marks[9];
    assert_int_equal(dr_tokens_part(tokens, 330, 10, &part), DR_OK); /* begins within a document */
    assert_int_equal(part->read(part, 1, 9, ids, marks), DR_OK);
    assert_int_equal(tokens->read(tokens, 331, 9, whole, marks), DR_OK);
    assert_memory_equal(ids, whole, sizeof ids);
    assert_int_equal(dr_token_documents_find(part, &found), DR_OK);
    assert_int_equal(found.count, 3);
    assert_true(found.begin[1] == 4 && found.begin[2] == 6 && found.begin[3] == 10);
    dr_token_documents_release(&found);
    dr_tokens_destroy(part);
    dr_tokens_destroy(tokens);
    free_corpus(&corpus);
}

/* Each member gives its windows in its own order, none left out, in its share of every block; and wherever a run goes on, the
 * windows are the same. */
static void test_mixtures_keep_their_weights(void **state) {
    (void)state;
    enum { LENGTH = 4, MEMBERS = 3 };
    static const double weights[MEMBERS] = {6, 3, 1};
    dr_corpus corpus[MEMBERS];
    dr_tokens *tokens[MEMBERS];
    dr_windows *windows[MEMBERS], *alone[MEMBERS];
    dr_mixture *mixture, *resumed;
    int32_t ids[LENGTH], labels[LENGTH], other[LENGTH];
    uint8_t marks[LENGTH];
    int64_t given[MEMBERS] = {0};
    for (int m = 0; m < MEMBERS; m++) {
        const int64_t size = 100 + 37 * m;
        corpus[m] = made_corpus(&size, 1);
        memset((uint8_t *)corpus[m].documents.at[0].text, 'a' + m, (size_t)size);
        assert_int_equal(dr_tokens_of_bytes(&corpus[m].documents, &tokens[m]), DR_OK);
        assert_int_equal(dr_windows_create(tokens[m], LENGTH, 5, &windows[m]), DR_OK);
        assert_int_equal(dr_windows_create(tokens[m], LENGTH, 5, &alone[m]), DR_OK);
    }
    assert_int_equal(dr_mixture_create(windows, weights, MEMBERS, 9, &mixture), DR_OK);
    for (int64_t i = 0; i < 2 * DR_MIXTURE_BLOCK; i++) {
        assert_int_equal(dr_mixture_get(mixture, i, ids, labels, marks), DR_OK);
        int m = labels[LENGTH - 1] - 'a';
        assert_in_range(m, 0, MEMBERS - 1);
        assert_int_equal(dr_windows_get(alone[m], given[m]++, other, labels, marks), DR_OK);
        assert_memory_equal(ids, other, sizeof ids);
        for (int k = 0; k < MEMBERS && i + 1 == DR_MIXTURE_BLOCK; k++)
            assert_true(fabs((double)given[k] - weights[k] / 10 * DR_MIXTURE_BLOCK) < 1);
    }
    assert_int_equal(dr_mixture_create(windows, weights, MEMBERS, 9, &resumed), DR_OK);
    dr_mixture_prepare(resumed, 5000);
    dr_mixture_get(resumed, 5000, ids, labels, marks);
    dr_mixture_get(mixture, 5000, other, labels, marks);
    assert_memory_equal(ids, other, sizeof ids);
    dr_mixture_destroy(resumed);
    dr_mixture_destroy(mixture);
    assert_int_equal(dr_mixture_create(windows, (double[]){1, 1, 1e-6}, MEMBERS, 9, &mixture), DR_ERROR_ARGUMENT);
    assert_non_null(strstr(dr_last_error(), "member 2 of the mixture has a weight so small"));
    for (int m = 0; m < MEMBERS; m++) {
        dr_windows_destroy(windows[m]);
        dr_windows_destroy(alone[m]);
        dr_tokens_destroy(tokens[m]);
        free_corpus(&corpus[m]);
    }
}

/* ---- failed allocations ---- */

static dr_status use_everything(void *context) {
    dr_tokens *tokens = NULL, *part = NULL;
    dr_windows *windows = NULL;
    dr_mixture *mixture = NULL;
    dr_token_documents places = {0};
    dr_status status;
    DR_GO(dr_tokens_of_bytes(context, &tokens));
    DR_GO(dr_tokens_part(tokens, 0, tokens->count, &part));
    DR_GO(dr_token_documents_find(tokens, &places));
    DR_GO(dr_windows_create(part, 4, 1, &windows));
    DR_GO(dr_mixture_create(&windows, &(double){1}, 1, 1, &mixture));
done:
    dr_mixture_destroy(mixture);
    dr_windows_destroy(windows);
    dr_token_documents_release(&places);
    dr_tokens_destroy(part);
    dr_tokens_destroy(tokens);
    return status;
}

static void test_failed_allocations_are_survived(void **state) {
    (void)state;
    const int64_t sizes[] = {33, 1, 20};
    dr_corpus corpus = made_corpus(sizes, 3);
    assert_true(assert_survives_failed_allocations(use_everything, &corpus.documents) > 10);
    free_corpus(&corpus);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows_visit_all_text),
        cmocka_unit_test(test_shortest_text_for_a_window),
        cmocka_unit_test(test_documents_of_rows),
        cmocka_unit_test(test_mixtures_keep_their_weights),
        cmocka_unit_test(test_failed_allocations_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
