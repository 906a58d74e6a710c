(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (memory $private (;0;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $r0 i64) (local $r3 i64)
    i64.const 0
    local.set $r0
    i64.const 0
    local.set $r2
    block ;; label = @1
      loop ;; label = @2
        i64.const 0
        local.set $r3
        block ;; label = @3
          loop ;; label = @4
            local.get $r0
            local.get $r3
            i64.add
            local.tee $r0
            i64.const 10
            i64.gt_u
            br_if 3 (;@1;)
            local.get $r3
            i64.const 1
            i64.add
            local.tee $r3
            i64.const 4
            i64.lt_u
            br_if 0 (;@4;)
          end
        end
        local.get $r2
        i64.const 1
        i64.add
        local.set $r2
        br 0 (;@2;)
      end
    end
    local.get $r0
  )
)
