(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $r0 i64)
    i32.const 8184
    i64.const 5
    i64.store align=1
    i32.const 8176
    i64.const 6
    i64.store align=1
    i64.const 2
    local.set $r1
    i32.const 8184
    local.get $r1
    i64.atomic.rmw.add
    drop
    i32.const 8176
    local.get $r1
    i64.atomic.rmw32.or_u
    drop
    i32.const 8184
    local.get $r1
    i64.atomic.rmw.xor
    local.set $r1
    i64.const 9
    local.set $r2
    i32.const 8176
    local.get $r2
    i64.atomic.rmw32.and_u
    local.set $r2
    i64.const 1
    local.set $r3
    i32.const 8184
    local.get $r3
    i64.atomic.rmw.xchg
    local.set $r3
    i64.const 6
    local.set $r0
    i32.const 8176
    local.get $r0
    i32.wrap_i64
    local.get $r3
    i32.wrap_i64
    i32.atomic.rmw.cmpxchg
    i64.extend_i32_u
    local.set $r0
    i32.const 8184
    local.get $r0
    local.get $r2
    i64.atomic.rmw.cmpxchg
    local.tee $r0
  )
)
