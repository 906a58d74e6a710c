(module $main
  (type (;0;) (func (param i64 i64) (result i64)))
  (import "map" "0" (memory $a (;0;) 1 1 shared))
  (import "map" "1" (memory $b (;1;) 1 1 shared))
  (memory $private (;2;) 1 1)
  (export "memory" (memory $private))
  (export "entry" (func $main))
  (func $main (;0;) (type 0) (param $r1 i64) (param $r2 i64) (result i64)
    (local $pointer i64) (local $r0 i64)
    block ;; label = @1
      block ;; label = @2
        block ;; label = @3
          block ;; label = @4
            block ;; label = @5
              local.get $r1
              i64.const 4
              i64.add
              local.tee $pointer
              i64.const 32
              i64.shr_u
              i32.wrap_i64
              i32.const 1
              i32.sub
              br_table 0 (;@5;) 1 (;@4;) 2 (;@3;) 3 (;@2;)
            end
            local.get $pointer
            i32.wrap_i64
            i64.load32_u $private align=1
            local.set $r0
            br 3 (;@1;)
          end
          local.get $pointer
          i32.wrap_i64
          i64.load32_u align=1
          local.set $r0
          br 2 (;@1;)
        end
        local.get $pointer
        i32.wrap_i64
        i64.load32_u $b align=1
        local.set $r0
        br 1 (;@1;)
      end
      unreachable
    end
    block ;; label = @1
      block ;; label = @2
        block ;; label = @3
          block ;; label = @4
            block ;; label = @5
              local.get $r1
              i64.const -1
              i64.add
              local.tee $pointer
              i64.const 32
              i64.shr_u
              i32.wrap_i64
              i32.const 1
              i32.sub
              br_table 0 (;@5;) 1 (;@4;) 2 (;@3;) 3 (;@2;)
            end
            local.get $pointer
            i32.wrap_i64
            i64.const 7
            i64.store8 $private
            br 3 (;@1;)
          end
          local.get $pointer
          i32.wrap_i64
          i64.const 7
          i64.store8
          br 2 (;@1;)
        end
        local.get $pointer
        i32.wrap_i64
        i64.const 7
        i64.store8 $b
        br 1 (;@1;)
      end
      unreachable
    end
    local.get $r0
  )
)
