(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $select i32)
    block ;; label = @1
      i64.const 0
      local.set $r0
      local.get $r2
      i64.const 8
      i64.gt_u
      if ;; label = @2
        i32.const 1
        local.set $select
        br 1 (;@1;)
      end
      i32.const 0
      local.set $select
    end
    block ;; label = @1
      loop ;; label = @2
        block ;; label = @3
          block ;; label = @4
            local.get $select
            br_table 1 (;@3;) 0 (;@4;)
          end
          local.get $r0
          i64.const 2
          i64.add
          local.tee $r0
          i64.const 100
          i64.ge_u
          br_if 2 (;@1;)
          i32.const 0
          local.set $select
          br 1 (;@2;)
        end
        local.get $r0
        i64.const 1
        i64.add
        local.set $r0
        i32.const 1
        local.set $select
        br 0 (;@2;)
      end
    end
    block ;; label = @1
      local.get $r0
      i64.const 101
      i64.ne
      br_if 0 (;@1;)
      i64.const 0
      local.set $r0
    end
    local.get $r0
  )
)
