(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r3 i64) (local $r0 i64)
    block ;; label = @1
      i32.const 16384
      i64.load32_u align=1
      local.set $r2
      i32.const 16388
      i64.load32_u align=1
      local.set $r3
      local.get $r2
      local.get $r3
      i64.gt_u
      if ;; label = @2
        i64.const 2
        local.tee $r0
        local.get $r3
        i64.add
        local.set $r0
        br 1 (;@1;)
      end
      i64.const 1
      local.tee $r0
      local.get $r2
      i64.add
      local.set $r0
    end
    i32.const 16392
    local.get $r0
    i64.store align=1
    local.get $r0
  )
)
