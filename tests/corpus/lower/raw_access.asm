; Nothing is proved: every access asks the tag, and an unknown one traps.
; raw
; map a array 4 8 4
; map b hash 4 8 4
r0 = *(u32 *)(r1 + 4)
*(u8 *)(r1 - 1) = 7
exit
