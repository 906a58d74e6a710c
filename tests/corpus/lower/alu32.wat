(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64) (local $r4 i64)
    i32.const 16384
    i64.load align=1
    local.set $r0
    i32.const 16392
    i64.load align=1
    local.set $r2
    local.get $r0
    i32.wrap_i64
    local.get $r2
    i32.wrap_i64
    i32.add
    i64.extend_i32_u
    local.tee $r0
    i64.const 255
    i64.and
    local.tee $r0
    i32.wrap_i64
    i32.const 4
    i32.shl
    i64.extend_i32_u
    local.tee $r0
    i32.wrap_i64
    local.get $r2
    i32.wrap_i64
    i32.shr_s
    i64.extend_i32_u
    local.set $r0
    i32.const 0
    local.get $r0
    i32.wrap_i64
    i32.sub
    i64.extend_i32_u
    local.tee $r0
    i32.wrap_i64
    i32.extend16_s
    i64.extend_i32_u
    local.tee $r3
    i32.wrap_i64
    i64.extend_i32_u
    local.set $r2
    local.get $r0
    i32.wrap_i64
    local.get $r2
    i32.wrap_i64
    i32.xor
    i64.extend_i32_u
    local.set $r0
    i64.const 4294967295
    local.set $r4
    local.get $r0
    local.get $r4
    i64.add
    local.tee $r0
  )
)
