; Division by zero gives 0, modulo by zero the dividend, MIN / -1 MIN; a constant divisor needs no test.
r0 = *(u64 *)(r1 + 0)
r2 = *(u64 *)(r1 + 8)
r0 /= 10
r0 s/= -1
r0 /= r2
r0 s/= r2
r0 %= r2
r0 s%= r2
w0 /= w2
w0 s/= w2
w0 %= 7
w0 s%= w2
exit
