/* The page at "/", page.html as it was when the program was built. */
#ifndef DR_SERVE_PAGE_H
#define DR_SERVE_PAGE_H

extern const char dr_page[];

#endif
