(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $pointer i64) (local $r0 i64)
    local.get $r1
    local.tee $pointer
    i64.const 32
    i64.shr_u
    i32.wrap_i64
    i32.const 1
    i32.ne
    if ;; label = @1
      unreachable
    end
    local.get $pointer
    i32.wrap_i64
    i64.load align=1
    local.set $r0
    local.get $r1
    i64.const 8
    i64.add
    local.tee $pointer
    i64.const 32
    i64.shr_u
    i32.wrap_i64
    i32.const 1
    i32.ne
    if ;; label = @1
      unreachable
    end
    local.get $pointer
    i32.wrap_i64
    local.get $r0
    i64.atomic.rmw.add
    drop
    local.get $r0
  )
)
