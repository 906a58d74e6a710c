(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64) (local $r4 i64)
    i32.const 16384
    i64.load8_u
    local.set $r0
    i32.const 16386
    i64.load16_u align=1
    local.set $r2
    i32.const 16389
    i64.load8_s
    local.set $r3
    i32.const 16392
    i64.load32_s align=1
    local.set $r4
    local.get $r0
    local.get $r2
    i64.add
    local.tee $r0
    local.get $r3
    i64.add
    local.tee $r0
    local.get $r4
    i64.add
    local.set $r0
    i32.const 16400
    local.get $r0
    i64.store align=1
    i32.const 16408
    i64.const -1
    i64.store32 align=1
    local.get $r0
  )
)
