/* Pieces go through the stages one by one, depth first, so that no list of them is kept. */
#include "tokenize/split.h"

#include "base/error.h"
#include "base/utf8.h"
#include "tokenize/bpe.h"

#include <string.h>

void dr_stage_release(dr_stage *stage) {
    dr_text_release(&stage->text);
    dr_text_release(&stage->mark);
    dr_pattern_destroy(stage->pattern);
    *stage = (dr_stage){0};
}

/* One run of a stage over one piece. */
typedef struct {
    const dr_stage *stages;
    int count;
    dr_split_work *work;
    dr_piece piece;
    dr_text *alphabet;
    bool holds; /* a part that may yet grow */
    size_t held_start, held_end;
    bool held_match, last_match; /* of the part that is held; of the part before */
} run;

static dr_status next_stage(run *r, size_t start, size_t end) {
    if (start == end) return DR_OK;
    dr_piece piece = {r->piece.text + start, end - start, r->piece.first && start == 0};
    if (r->stages->alphabet) {
        r->alphabet->count = 0;
        for (size_t i = 0; i < piece.bytes; i++) {
            char text[4];
            DR_TRY(dr_text_append(r->alphabet, text, dr_utf8_write(dr_alphabet_character((uint8_t)piece.text[i]), text)));
        }
        piece.text = r->alphabet->bytes;
        piece.bytes = r->alphabet->count;
    }
    return dr_split_piece(r->stages + 1, r->count - 1, r->work, piece);
}

static dr_status release_held(run *r) {
    if (!r->holds) return DR_OK;
    r->holds = false;
    return next_stage(r, r->held_start, r->held_end);
}

static void hold(run *r, size_t start, size_t end, bool match) {
    r->holds = true;
    r->held_start = start;
    r->held_end = end;
    r->held_match = match;
}

/* A part of the piece, a match or what lies between; they come in order and leave nothing out. */
static dr_status part(run *r, size_t start, size_t end, bool match) {
    match ^= r->stages->invert;
    bool grows = false;
    switch (r->stages->behavior) {
    case DR_ISOLATED:
        return next_stage(r, start, end);
    case DR_REMOVED:
        return match ? DR_OK : next_stage(r, start, end);
    case DR_MERGED_WITH_PREVIOUS:
        grows = r->holds && match && !r->last_match;
        break;
    case DR_MERGED_WITH_NEXT:
        grows = r->holds && !match && r->held_match;
        break;
    case DR_CONTIGUOUS:
        grows = r->holds && match == r->last_match;
        break;
    }
    r->last_match = match;
    if (grows) {
        r->held_end = end;
        r->held_match = match;
        return DR_OK;
    }
    DR_TRY(release_held(r));
    hold(r, start, end, match);
    return DR_OK;
}

static dr_status split_by_text(run *r) {
    const dr_text *wanted = &r->stages->text;
    const char *text = r->piece.text;
    size_t from = 0, bytes = r->piece.bytes;
    while (from < bytes) {
        const char *found = memmem(text + from, bytes - from, wanted->bytes, wanted->count);
        if (!found) break;
        size_t start = (size_t)(found - text);
        if (start > from) DR_TRY(part(r, from, start, false));
        from = start + wanted->count;
        DR_TRY(part(r, start, from, true));
    }
    return from < bytes ? part(r, from, bytes, false) : DR_OK;
}

/* Empty matches count: they cut. One right behind another match does not. */
static dr_status split_by_pattern(run *r) {
    size_t done = 0, from = 0, last = SIZE_MAX, bytes = r->piece.bytes, start, end, length;
    while (from <= bytes) {
        bool found;
        DR_TRY(dr_pattern_search(r->stages->pattern, r->work->searcher, r->piece.text, bytes, from, &found, &start, &end));
        if (!found) break;
        if (start == end && end == last) {
            if (from >= bytes) break;
            dr_utf8_character(r->piece.text + from, &length);
            from += length;
            continue;
        }
        from = last = end;
        if (start > done) DR_TRY(part(r, done, start, false));
        DR_TRY(part(r, start, end, true));
        done = end;
    }
    return done < bytes ? part(r, done, bytes, false) : DR_OK;
}

static dr_status split_by_scan(run *r) {
    for (size_t at = 0, end; at < r->piece.bytes; at = end) {
        end = r->stages->scanner(r->work->classes, r->piece.text, r->piece.bytes, at);
        DR_TRY(part(r, at, end, true));
    }
    return DR_OK;
}

static dr_status split_by_character(run *r) {
    size_t from = 0;
    for (size_t at = 0, length; at < r->piece.bytes; at += length) {
        uint32_t c = dr_utf8_character(r->piece.text + at, &length);
        if (!r->stages->is(c)) continue;
        if (at > from) DR_TRY(part(r, from, at, false));
        from = at + length;
        DR_TRY(part(r, at, from, true));
    }
    return from < r->piece.bytes ? part(r, from, r->piece.bytes, false) : DR_OK;
}

/* What stands before a piece, and Metaspace's marks. */
static dr_status prepare(const dr_stage *stage, dr_text *changed, dr_piece *piece) {
    const dr_text *mark = &stage->mark;
    const bool space = stage->space && piece->text[0] != ' ';
    if (!space && mark->count == 0) return DR_OK;
    changed->count = 0;
    if (space) DR_TRY(dr_text_append(changed, " ", 1));
    if (mark->count > 0) {
        const bool marked =
            piece->text[0] == ' ' || (piece->bytes >= mark->count && memcmp(piece->text, mark->bytes, mark->count) == 0);
        if (!marked && (stage->prepend == DR_PREPEND_ALWAYS || (stage->prepend == DR_PREPEND_FIRST && piece->first)))
            DR_TRY(dr_text_append(changed, mark->bytes, mark->count));
        for (size_t from = 0, end; from < piece->bytes; from = end + 1) {
            const char *found = memchr(piece->text + from, ' ', piece->bytes - from);
            end = found ? (size_t)(found - piece->text) : piece->bytes;
            DR_TRY(dr_text_append(changed, piece->text + from, end - from));
            if (found) DR_TRY(dr_text_append(changed, mark->bytes, mark->count));
        }
    } else {
        DR_TRY(dr_text_append(changed, piece->text, piece->bytes));
    }
    piece->text = changed->bytes;
    piece->bytes = changed->count;
    return DR_OK;
}

dr_status dr_split_piece(const dr_stage *stages, int count, dr_split_work *work, dr_piece piece) {
    if (piece.bytes == 0) return DR_OK;
    if (count == 0) return work->emit(work->context, piece.text, piece.bytes);
    dr_text *changed = &work->changed[2 * (count - 1)];
    DR_TRY(prepare(stages, &changed[0], &piece));
    run r = {.stages = stages, .count = count, .work = work, .piece = piece, .alphabet = &changed[1]};
    switch (stages->match) {
    case DR_MATCH_NOTHING:
        return next_stage(&r, 0, piece.bytes);
    case DR_MATCH_TEXT:
        DR_TRY(split_by_text(&r));
        break;
    case DR_MATCH_PATTERN:
        DR_TRY(split_by_pattern(&r));
        break;
    case DR_MATCH_SCAN:
        DR_TRY(split_by_scan(&r));
        break;
    case DR_MATCH_CHARACTER:
        DR_TRY(split_by_character(&r));
        break;
    }
    return release_held(&r);
}
