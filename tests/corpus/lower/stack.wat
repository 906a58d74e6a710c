(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $r4 i64) (local $r0 i64)
    i64.const 7
    local.set $r3
    i32.const 8184
    local.get $r3
    i64.store align=1
    i32.const 8176
    i64.const 0
    i64.store align=1
    i32.const 16384
    i64.load8_u
    local.tee $r2
    i64.const 8
    i64.and
    local.set $r2
    i64.const 4294975488
    local.tee $r4
    i64.const -16
    i64.add
    local.tee $r4
    local.get $r2
    i64.add
    local.tee $r4
    i32.wrap_i64
    i64.load align=1
    local.tee $r0
  )
)
