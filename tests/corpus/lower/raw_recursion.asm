; Recursion ends at the bottom of the stack; an entry function that is called needs a second way in.
; raw
fn main:
r0 = r1
if r1 == 0 goto done
r1 -= 1
call fn main
done:
exit
