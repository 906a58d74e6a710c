(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (type (;1;) (func (param i64 i64 i64 i64 i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $r4 i64) (local $r5 i64) (local $r0 i64)
    i32.const 8184
    i64.const 40
    i64.store align=1
    i64.const 4294975488
    local.tee $r1
    i64.const -8
    i64.add
    local.set $r1
    i64.const 2
    local.set $r2
    local.get $r1
    local.get $r2
    local.get $r3
    local.get $r4
    local.get $r5
    i64.const 4294974976
    call $sum
    local.tee $r0
  )
  (func $sum (;1;) (type 1) (param $r1 i64) (param $r2 i64) (param $r3 i64) (param $r4 i64) (param $r5 i64) (param $r10 i64) (result i64)
    (local $r0 i64)
    local.get $r10
    i32.wrap_i64
    i32.const -16
    i32.add
    local.get $r2
    i64.store align=1
    local.get $r1
    i32.wrap_i64
    i64.load align=1
    local.set $r0
    local.get $r10
    i32.wrap_i64
    i32.const -16
    i32.add
    i64.load align=1
    local.set $r3
    local.get $r0
    local.get $r3
    i64.add
    local.tee $r0
  )
)
