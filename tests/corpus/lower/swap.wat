(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64)
    i32.const 16384
    i64.load align=1
    local.tee $r0
    i32.wrap_i64
    i32.const 8
    i32.shr_u
    i32.const 255
    i32.and
    local.get $r0
    i32.wrap_i64
    i32.const 255
    i32.and
    i32.const 8
    i32.shl
    i32.or
    i64.extend_i32_u
    local.set $r0
    i32.const 16392
    i64.load align=1
    local.tee $r2
    i32.wrap_i64
    i32.const 8
    i32.rotl
    i32.const 16711935
    i32.and
    local.get $r2
    i32.wrap_i64
    i32.const 8
    i32.rotr
    i32.const -16711936
    i32.and
    i32.or
    i64.extend_i32_u
    local.set $r2
    i32.const 16400
    i64.load align=1
    local.tee $r3
    i64.const 8
    i64.shr_u
    i64.const 71777214294589695
    i64.and
    local.get $r3
    i64.const 71777214294589695
    i64.and
    i64.const 8
    i64.shl
    i64.or
    local.tee $r3
    i64.const 16
    i64.shr_u
    i64.const 281470681808895
    i64.and
    local.get $r3
    i64.const 281470681808895
    i64.and
    i64.const 16
    i64.shl
    i64.or
    local.tee $r3
    i64.const 32
    i64.rotl
    local.tee $r3
    i64.const 4294967295
    i64.and
    local.set $r3
    local.get $r0
    local.get $r2
    i64.add
    local.tee $r0
    local.get $r3
    i64.add
    local.tee $r0
  )
)
