; callx compares with the helpers on offer.
; raw
r2 = 5
callx r2
r0 = 2
exit
