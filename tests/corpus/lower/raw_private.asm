; Without maps there is one memory only.
; raw
r0 = *(u64 *)(r1 + 0)
lock *(u64 *)(r1 + 8) += r0
exit
