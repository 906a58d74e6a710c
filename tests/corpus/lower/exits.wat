(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64)
    block ;; label = @1
      i64.const 1
      local.set $r0
      i32.const 16384
      i64.load32_u align=1
      local.tee $r2
      i64.eqz
      br_if 0 (;@1;)
      i64.const 2
      local.set $r0
      i32.const 16388
      i64.load32_u align=1
      local.tee $r3
      i32.wrap_i64
      i32.const 5
      i32.lt_s
      br_if 0 (;@1;)
      i64.const 3
      local.set $r0
      local.get $r3
      i64.const 8
      i64.and
      i64.const 0
      i64.ne
      br_if 0 (;@1;)
      i64.const 4
      local.set $r0
      local.get $r2
      local.get $r3
      i64.ne
      br_if 0 (;@1;)
      i64.const 5
      local.set $r0
    end
    local.get $r0
  )
)
