#include "formats/names/description.h"

#include "base/memory.h"

void dr_description_release(dr_description *description) {
    dr_release(description->layers);
    *description = (dr_description){0};
}
