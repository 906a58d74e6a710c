(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64)
    i32.const 16384
    i64.load8_u
    local.tee $r2
    i64.const 7
    i64.and
    local.tee $r2
    local.tee $r0
  )
)
