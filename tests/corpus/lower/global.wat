(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (import "map" "0" (memory $.bss (;0;) 1 1 shared))
  (memory $private (;1;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64)
    i64.const 8589934600
    local.set $r1
    i32.const 8
    i64.load align=1
    local.tee $r2
    i64.const 1
    i64.add
    local.set $r2
    i32.const 8
    local.get $r2
    i64.store align=1
    i32.const 24
    i64.load32_u align=1
    local.tee $r0
  )
)
