(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64)
    i32.const 16384
    i64.load align=1
    local.set $r0
    i32.const 16392
    i64.load align=1
    local.set $r2
    local.get $r0
    local.get $r2
    i64.add
    local.tee $r0
    i64.const -5
    i64.sub
    local.tee $r0
    i64.const 3
    i64.mul
    local.tee $r0
    local.get $r2
    i64.or
    local.tee $r0
    i64.const -16
    i64.and
    local.tee $r0
    i64.const 2147483647
    i64.xor
    local.tee $r0
    i64.const 3
    i64.shl
    local.tee $r0
    local.get $r2
    i64.shr_u
    local.tee $r0
    i64.const 1
    i64.shr_s
    local.set $r0
    i64.const 0
    local.get $r0
    i64.sub
    local.tee $r0
    i64.extend8_s
    local.tee $r3
    i64.extend32_s
    local.set $r3
    local.get $r0
    local.get $r3
    i64.add
    local.tee $r0
  )
)
